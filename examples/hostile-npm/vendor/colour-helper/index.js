'use strict';
module.exports = (text) => `\u001b[32m${text}\u001b[0m`;

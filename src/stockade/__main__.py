"""``python -m stockade``: the command line without an installed script.

Fails closed: ``-m`` puts the working directory first on the import path; it is taken off before
anything else is imported, because a project that holds a ``json.py`` must not run in here.
"""

import sys

if not sys.flags.safe_path and sys.path:
    del sys.path[0]

from stockade.cli import main

sys.exit(main())

#!/bin/sh
# Runs the Python tests. The hostile programs are built by the tests themselves,
# so a working rustc must be on PATH here, too.
set -eu
cd "$(dirname "$0")/.."
HOME=${HOME:-}
. scripts/lib.sh
use_cargo || die "Rust is missing: no working cargo (hint: install Rust stable with rustup)"
exec .venv/bin/python -m pytest "$@"

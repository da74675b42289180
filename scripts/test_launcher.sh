#!/bin/sh
# Runs the launcher's own tests. Debug profile: the release build's fat link
# time optimisation would be paid again for every test binary.
set -eu
cd "$(dirname "$0")/.."
HOME=${HOME:-}
. scripts/lib.sh
use_cargo || die "Rust is missing: no working cargo (hint: install Rust stable with rustup)"
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET CARGO_BUILD_RUSTFLAGS CARGO_TARGET_DIR || true
cd launcher
exec cargo test --quiet --locked

#!/bin/sh
# Builds the static launcher and puts it beside the Python package.
# Fails closed: a launcher that would need a dynamic loader is not installed,
# because LD_PRELOAD and friends would then run before the box exists.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
HOME=${HOME:-}
. scripts/lib.sh

use_cargo || die "rust_missing: build of the launcher: got no working cargo on PATH or in the account's home, expected Rust stable (hint: install it with rustup, set RUSTUP_HOME, or install a wheel: it needs none)"
# These would replace the flags of launcher/.cargo/config.toml, and with them "static".
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET CARGO_BUILD_RUSTFLAGS CARGO_TARGET_DIR || true

triple=$(rustc -vV | sed -n 's/^host: //p')
if [ ! -x src/stockade/_bin/stockade-launch ]; then
    say "building the launcher (about a minute the first time)"
fi
build() { (cd launcher && "$@" cargo build --quiet --release --locked --target "$triple"); }
ground=bare
if ! build env -u STOCKADE_C_LIBRARY; then
    # A newer standard library may want a C function that launcher/src/rt lacks; the linker said which.
    say "$(rustc -V) cannot build the launcher without a C library (above): building it with one, 0.4 ms slower to start"
    ground=c
    build env STOCKADE_C_LIBRARY=1
fi
built=launcher/target/$triple/release/stockade-launch

if command -v readelf >/dev/null 2>&1 && readelf -lW "$built" | grep -q INTERP; then
    die "launcher_dynamic: build of '$root/$built': got a program that needs a loader, expected a static one"
fi
# build.rs lets nothing of it in; this finds a linker that looked elsewhere.
if [ "$ground" = bare ] && grep -qa 'GNU C Library\|GLIBC_' "$built"; then
    die "launcher_c_library: build of '$root/$built': got a program that holds the C library, expected none"
fi
target=src/stockade/_bin/stockade-launch
mkdir -p src/stockade/_bin
chmod 0755 src/stockade/_bin
# Left alone when equal: host answers are cached by the launcher's identity.
if ! cmp -s "$built" "$target"; then
    install -m 0755 "$built" "$target.new"
    mv -f "$target.new" "$target"
    say "launcher: $(stat -c %s "$target") bytes, static"
fi

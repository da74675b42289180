#!/bin/sh
# Sets up everything that building, testing and the demonstration need:
# checks Rust, Python and Node, installs missing Debian packages when it can,
# makes .venv and builds the launcher. Safe to run again; does nothing twice.
set -eu
cd "$(dirname "$0")/.."
HOME=${HOME:-}
. scripts/lib.sh

need_languages() {
    use_cargo || die "Rust is missing: no working cargo on PATH or in the account's home (hint: install Rust stable with rustup, or set RUSTUP_HOME)"
    find_python >/dev/null || die "Python 3.11 or newer is missing (hint: install python3, or name one with PYTHON=/path/to/python3)"
    command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 || die "Node is missing: node and npm are needed by the demonstration and the tests (hint: install Node 18 or newer)"
}

missing_packages() {
    command -v gcc >/dev/null 2>&1 || printf 'gcc libc6-dev '
    command -v make >/dev/null 2>&1 || printf 'make '
    command -v git >/dev/null 2>&1 || printf 'git '
    command -v bwrap >/dev/null 2>&1 || printf 'bubblewrap '
    command -v hyperfine >/dev/null 2>&1 || printf 'hyperfine '
    "$(find_python)" -c 'import ensurepip, venv' >/dev/null 2>&1 || printf 'python3-venv '
}

install_packages() {
    packages=$(missing_packages)
    [ -n "$packages" ] || return 0
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing missing Debian packages: $packages"
        apt-get update -qq >/dev/null
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
    else
        die "missing programs (hint: install these Debian packages or their like: $packages)"
    fi
}

make_venv() {
    stamp=.venv/.stockade-setup
    if [ -e "$stamp" ] && [ ! pyproject.toml -nt "$stamp" ] && [ ! scripts/constraints.txt -nt "$stamp" ] \
        && .venv/bin/python -c 'import stockade, pytest' >/dev/null 2>&1; then
        return 0
    fi
    python=$(find_python)
    say "making .venv with $python ($("$python" -c 'import platform; print(platform.python_version())'))"
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
        .venv/bin/python -m pip install --quiet -c scripts/constraints.txt -e '.[dev]'
    touch "$stamp"
}

need_languages
install_packages
make_venv
sh scripts/build_launcher.sh
# Compiled once here: an account that may not write beside the sources would
# compile them again at every start.
.venv/bin/python -m compileall -q src/stockade || say "some sources could not be compiled ahead"

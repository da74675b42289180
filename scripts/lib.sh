# Shared by the set-up scripts: plain messages, and a search for the tools that
# also works when HOME is empty, new or unset.

say() { printf '%s\n' "stockade: $*"; }
die() { printf '%s\n' "stockade: $*" >&2; exit 1; }

# The home that the account database names, whatever HOME says.
account_home() {
    if command -v getent >/dev/null 2>&1; then
        getent passwd "$(id -u)" | cut -d: -f6
    fi
}

# Puts a working cargo first on PATH. A rustup proxy without its RUSTUP_HOME is a
# program that exists and cannot work, so each candidate is run.
use_cargo() {
    for dir in "$(dirname "$(command -v cargo 2>/dev/null || echo /nonexistent/cargo)")" \
        "${CARGO_HOME:-$HOME/.cargo}/bin" "$(account_home)/.cargo/bin" /usr/local/cargo/bin; do
        [ -x "$dir/cargo" ] || continue
        for rustup_home in "${RUSTUP_HOME:-}" "$(account_home)/.rustup" /usr/local/rustup; do
            try_cargo "$dir" "$rustup_home" && return 0
        done
    done
    for dir in "$(account_home)"/.rustup/toolchains/stable-*/bin "$(account_home)"/.rustup/toolchains/[0-9]*/bin; do
        try_cargo "$dir" "" && return 0
    done
    return 1
}

# Runs cargo and rustc of a directory; keeps both settings when they work.
try_cargo() {
    if [ -n "$2" ]; then
        env PATH="$1:$PATH" RUSTUP_HOME="$2" sh -c 'cargo --version && rustc --version' >/dev/null 2>&1 || return 1
        RUSTUP_HOME=$2
        export RUSTUP_HOME
    else
        env PATH="$1:$PATH" sh -c 'cargo --version && rustc --version' >/dev/null 2>&1 || return 1
    fi
    PATH=$1:$PATH
    export PATH
}

# Prints a Python that is new enough. The system one comes first: a private
# one (below /root, say) cannot be read by the ordinary users of the tests.
find_python() {
    for candidate in "${PYTHON:-}" /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

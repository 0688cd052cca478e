#!/bin/sh
# Installs what a fresh Debian or Ubuntu machine needs to build Zagros. Does nothing if everything is there.
# Installs system packages if it may do so without asking (root, or sudo without a password). Otherwise it prints the command.
set -eu
cd "$(dirname "$0")/.."

# The system's library and header of RocksDB; nothing if there are none.
rocksdb_library() { find /usr/lib /usr/local/lib -maxdepth 2 -name librocksdb.so 2>/dev/null | head -n 1; }
rocksdb_headers() { find /usr/include /usr/local/include -maxdepth 1 -name rocksdb 2>/dev/null | head -n 1; }

# bindgen reads that header with libclang and clang's own headers.
has_libclang() {
    [ -n "$(find /usr/lib -maxdepth 4 -name 'libclang*.so*' ! -name 'libclang-cpp*' 2>/dev/null | head -n 1)" ] &&
        [ -n "$(find /usr/lib -path '*/clang/*/include/stddef.h' 2>/dev/null | head -n 1)" ]
}

# The packages of both, in the system's preferred version: 155 MB, while libclang-dev takes 400 MB.
libclang_packages() {
    version="$(apt-cache depends libclang-dev 2>/dev/null | sed -n 's/.*Depends: libclang-\([0-9]*\)-dev.*/\1/p')"
    if [ -n "$version" ]; then echo "libclang1-$version libclang-common-$version-dev"; else echo libclang-dev; fi
}

missing=""
command -v c++ >/dev/null 2>&1 || missing="$missing g++"
python3 -c 'import pip' >/dev/null 2>&1 || missing="$missing python3-pip"
python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing python3-venv"
[ -n "$(rocksdb_library)" ] && [ -n "$(rocksdb_headers)" ] || missing="$missing librocksdb-dev"
has_libclang || missing="$missing libclang"

# The install command. It is needed after the update, which finds the versions.
install() { echo "apt-get install -y --no-install-recommends$missing" | sed "s/ libclang$/ $(libclang_packages)/"; }

if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "error: missing on this machine:$missing (named as Debian packages)" >&2
        echo "  next: install them with your system's package manager, then run this again" >&2
        echo "  without a package of RocksDB, cargo compiles its own (40 minutes of one core):" >&2
        echo "  ROCKSDB_COMPILE=1 ROCKSDB_INCLUDE_DIR=rocksdb/include cargo build --release" >&2
        exit 1
    elif [ "$(id -u)" = 0 ]; then
        echo "system packages: installing$missing"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(install) -qq >/dev/null
    elif sudo -n true 2>/dev/null; then
        echo "system packages: installing$missing (sudo)"
        sudo apt-get update -qq && sudo DEBIAN_FRONTEND=noninteractive $(install) -qq >/dev/null
    else
        echo "error: missing system packages:$missing" >&2
        echo "  next: sudo apt-get update && sudo $(install)" >&2
        exit 1
    fi
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "error: cargo was not found, and Zagros is built with Rust" >&2
    echo "  next: install Rust from https://rustup.rs, open a new shell, then run this again" >&2
    exit 1
fi

# Links, so that .cargo/config.toml can use the same path on every machine.
mkdir -p .deps/rocksdb/lib .deps/rocksdb/include
ln -sfn "$(rocksdb_library)" .deps/rocksdb/lib/librocksdb.so
ln -sfn "$(rocksdb_headers)" .deps/rocksdb/include/rocksdb

python3 scripts/fetch_libtorch.py
sh scripts/fetch_prometheus.sh
[ "${CI:-}" != true ] || sh scripts/fetch_chromium.sh

#!/bin/sh
# Makes a fresh Debian or Ubuntu machine able to build Zagros; does nothing when it already is.
# System packages are installed when this may be done without asking (root, or sudo without a
# password); otherwise the exact command is printed.
set -eu
cd "$(dirname "$0")/.."

missing=""
command -v c++ >/dev/null 2>&1 || missing="$missing g++"
python3 -c 'import pip' >/dev/null 2>&1 || missing="$missing python3-pip"

if [ -n "$missing" ]; then
    install="apt-get install -y --no-install-recommends$missing"
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "error: missing on this machine:$missing (named as Debian packages)" >&2
        echo "  next: install them with your system's package manager, then run this again" >&2
        exit 1
    elif [ "$(id -u)" = 0 ]; then
        echo "system packages: installing$missing"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null
    elif sudo -n true 2>/dev/null; then
        echo "system packages: installing$missing (sudo)"
        sudo apt-get update -qq && sudo DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null
    else
        echo "error: missing system packages:$missing" >&2
        echo "  next: sudo apt-get update && sudo $install" >&2
        exit 1
    fi
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "error: cargo was not found, and Zagros is built with Rust" >&2
    echo "  next: install Rust from https://rustup.rs, open a new shell, then run this again" >&2
    exit 1
fi

python3 scripts/fetch_libtorch.py

#!/bin/sh
# Puts prometheus and promtool into .deps/prometheus, which the checks of monitoring/ run; does nothing when they are there.
# The Debian package is unpacked, not installed: no service starts, and nobody needs to be root.
set -eu
cd "$(dirname "$0")/.."

FOLDER=.deps/prometheus
[ -x $FOLDER/prometheus ] && [ -x $FOLDER/promtool ] && exit 0

# Those that somebody has installed are as good.
if command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; then
    mkdir -p $FOLDER
    ln -sfn "$(command -v prometheus)" $FOLDER/prometheus
    ln -sfn "$(command -v promtool)" $FOLDER/promtool
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    echo "note: prometheus and promtool were not found; checks of monitoring/ say so and skip" >&2
    exit 0
fi

echo "prometheus: unpacking Debian's package into $FOLDER"
unpacked="$(mktemp -d)"
trap 'rm -rf "$unpacked"' EXIT
# Where the list of packages is old or missing, root renews it; others see apt-get's own message.
if ! (cd "$unpacked" && apt-get download -qq prometheus >/dev/null 2>&1); then
    [ "$(id -u)" != 0 ] || apt-get update -qq
    (cd "$unpacked" && apt-get download -qq prometheus >/dev/null) || {
        echo "note: prometheus could not be downloaded; checks of monitoring/ say so and skip" >&2
        exit 0
    }
fi
dpkg-deb -x "$unpacked"/prometheus_*.deb "$unpacked/files"
mkdir -p $FOLDER
mv "$unpacked/files/usr/bin/prometheus" "$unpacked/files/usr/bin/promtool" $FOLDER/

#!/bin/sh
# Installs prometheus and promtool into .deps/prometheus, for the checks of monitoring/. Does nothing if they are there.
# The Debian package is unpacked, not installed: no service starts, and no root rights are needed.
set -eu
cd "$(dirname "$0")/.."

FOLDER=.deps/prometheus
[ -x $FOLDER/prometheus ] && [ -x $FOLDER/promtool ] && exit 0

# Installed ones are used.
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
# If the list of packages is old or missing, root renews it. Other users see apt-get's own message.
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

#!/bin/sh
# Installs Chromium for the tests of the live page. Does nothing if it is installed. `make test` calls this script only on build
# servers (CI=true), because the download has 90 MB. Without Chromium those tests say so and skip.
set -eu
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if ! command -v apt-get >/dev/null 2>&1; then
    echo "error: Chromium was not found; install it with your system's package manager" >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then sudo=""; else sudo="sudo -n"; fi
echo "chromium: installing Debian's package"
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y --no-install-recommends -qq chromium >/dev/null

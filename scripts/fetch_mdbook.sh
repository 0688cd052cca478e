#!/bin/sh
# Installs mdBook into .deps/mdbook, for the documentation site (`make docs`). Does nothing if it is there.
# It is compiled from crates.io, because no package index of this project has it as a program (docs/adr/0002-native-libraries-build-and-gate.md).
# Unoptimised and without its web server: compiling takes 74 s of CPU, and a build of the site a few seconds.
set -eu
cd "$(dirname "$0")/.."

VERSION=0.5.4
FOLDER=.deps/mdbook
[ "$($FOLDER/bin/mdbook --version 2>/dev/null)" != "mdbook v$VERSION" ] || exit 0

# An installed mdBook of the same version is used.
if [ "$(mdbook --version 2>/dev/null)" = "mdbook v$VERSION" ]; then
    mkdir -p $FOLDER/bin
    ln -sfn "$(command -v mdbook)" $FOLDER/bin/mdbook
    exit 0
fi

echo "mdbook: compiling release $VERSION into $FOLDER; once per machine, about a minute"
mkdir -p $FOLDER
CARGO_TARGET_DIR="$(pwd)/$FOLDER/target" CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_STRIP=debuginfo \
    cargo install --quiet --locked mdbook --version "$VERSION" --no-default-features --features search --root $FOLDER
rm -rf $FOLDER/target

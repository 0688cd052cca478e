#!/bin/sh
# Builds the program without libtorch into target/without-libtorch/zagros. The selection is the whole workspace, as everywhere, so that
# nothing but the program itself is compiled anew; then the program with libtorch takes its place again.
set -eu
cd "$(dirname "$0")/.."
cargo build --release --quiet --workspace --bins --lib --no-default-features
mkdir -p target/without-libtorch
cp target/release/zagros target/without-libtorch/zagros
cargo build --release --quiet --workspace --bins --lib

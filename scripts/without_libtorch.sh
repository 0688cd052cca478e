#!/bin/sh
# Builds the program without libtorch into target/without-libtorch/zagros. The selection is the whole workspace, as everywhere, so that
# nothing but the program itself is compiled anew; then the program with libtorch takes its place again.
#
# RocksDB and C++'s library come from archives, where the system has them: the program then needs libc alone. The linker takes a script in
# a library's place. It lies there during this build only: libtorch and the other program must have one C++ library in common.
set -eu
cd "$(dirname "$0")/.."
lib=.deps/rocksdb/lib
archives="rocksdb snappy gflags z bz2 lz4 zstd stdc++"
found=""
for name in $archives; do
    file="$(c++ -print-file-name="lib$name.a")"
    [ -f "$file" ] && found="$found $(realpath "$file")"
done
if [ "$(echo "$found" | wc -w)" = "$(echo "$archives" | wc -w)" ]; then
    system="$(readlink "$lib/librocksdb.so")"
    system_libraries() { rm -f "$lib/libstdc++.so" && ln -sfn "$system" "$lib/librocksdb.so"; }
    trap system_libraries EXIT
    rm "$lib/librocksdb.so"
    echo "GROUP( $found )" > "$lib/librocksdb.so"
    echo "INPUT( $(realpath "$(c++ -print-file-name=libstdc++.a)") )" > "$lib/libstdc++.so"
fi
cargo build --release --quiet --workspace --bins --lib --no-default-features
mkdir -p target/without-libtorch
cp target/release/zagros target/without-libtorch/zagros
[ -z "${system:-}" ] || system_libraries
cargo build --release --quiet --workspace --bins --lib

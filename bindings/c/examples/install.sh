#!/usr/bin/env bash
# Installs the C library by cargo-c into a folder, and builds and runs the example there: by CMake with the shared library,
# and with the static one. What is missing is said and left out.
set -euo pipefail
cd "$(dirname "$0")"
skipped() { echo "an installed C library: SKIPPED, $1" && exit; }
cargo cinstall --version >/dev/null 2>&1 || skipped "cargo-c is not installed here (cargo install cargo-c)"
for tool in cc pkg-config cmake; do
  command -v "$tool" >/dev/null || skipped "\`$tool\` is not installed here"
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The build of tests; users take --release.
cargo cinstall "${1:---debug}" --manifest-path ../Cargo.toml --prefix "$folder/usr" --libdir lib >"$folder/log" 2>&1 ||
  { cat "$folder/log" && exit 1; }
cp -r cmake "$folder/program"
cd "$folder/program"
export PKG_CONFIG_PATH=$folder/usr/lib/pkgconfig
cmake -B build -DCMAKE_PREFIX_PATH="$folder/usr" >/dev/null
cmake --build build >/dev/null
LD_LIBRARY_PATH=$folder/usr/lib build/example state
readelf -d "$folder/usr/lib/libpleach.so" | grep -o 'soname: .*'
rm "$folder"/usr/lib/*.so*
# shellcheck disable=SC2046 # They are words.
cc -std=c99 -Wall -Wextra -Werror -pedantic example.c -o static $(pkg-config --cflags --libs --static pleach)
./static state
ls -l "$folder/usr/lib/libpleach.a" | awk '{ print "libpleach.a: " $5 " bytes" }'

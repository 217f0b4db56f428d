#!/usr/bin/env bash
# Builds what a package index takes: wheels for glibc 2.17 and later and for musl, one for all versions of Python each,
# and the sdist, into the folder that is named. Linked by zig, which `pip` installs; `rustup` adds the target with musl.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "${1:?name a folder}"
out=$(realpath "$1")
target=$(cargo metadata --format-version 1 --no-deps | grep -o '"target_directory":"[^"]*"' | cut -d'"' -f4)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check build cargo-zigbuild twine
export PATH=$folder/venv/bin:$PATH CARGO_PROFILE_RELEASE_STRIP=symbols
rustup target add --toolchain "$(rustup show active-toolchain | cut -d' ' -f1)" x86_64-unknown-linux-musl 2>/dev/null

# Building leaves files in the folder of the sources, and takes them the next time. Links are files in a package.
mkdir -p "$folder/source/bindings"
cp -rL Cargo.toml Cargo.lock core io beatree history journal engine ops "$folder/source"
cp -rL bindings/python bindings/c "$folder/source/bindings"
wheel() {
  PLEACH_LIBRARY=$1 PLEACH_PLATFORM=$2 python -m build --wheel --outdir "$out" "$folder/source/bindings/python" >/dev/null
  rm -rf "$folder/source/bindings/python/build"
}
cargo zigbuild --quiet --release -p pleach-c --target x86_64-unknown-linux-gnu.2.17
wheel "$target/x86_64-unknown-linux-gnu/release/libpleach_c.so" manylinux_2_17_x86_64.manylinux2014_x86_64
# A shared library with musl links it dynamically.
RUSTFLAGS="-C target-feature=-crt-static" cargo zigbuild --quiet --release -p pleach-c --target x86_64-unknown-linux-musl
wheel "$target/x86_64-unknown-linux-musl/release/libpleach_c.so" musllinux_1_2_x86_64
python -m build --sdist --outdir "$out" "$folder/source/bindings/python" >/dev/null
twine check --strict "$out"/pleach-*
ls -l "$out" | awk 'NR > 1 { print $5, $9 }'

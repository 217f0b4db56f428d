#!/usr/bin/env bash
# Builds what a package index takes: wheels for glibc 2.17 and later and for musl, one for all versions of Python each, for x86-64
# and arm64, and the sdist, into the folder that is named. Linked by zig, which `pip` installs; `rustup` adds targets.
#   bindings/python/wheels.sh FOLDER [PROCESSOR...]      default x86_64 aarch64
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "${1:?name a folder}"
out=$(realpath "$1")
processors=("${@:2}")
((${#processors[@]} > 0)) || processors=(x86_64 aarch64)
target=$(cargo metadata --format-version 1 --no-deps | grep -o '"target_directory":"[^"]*"' | cut -d'"' -f4)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check build cargo-zigbuild twine
export PATH=$folder/venv/bin:$PATH CARGO_PROFILE_RELEASE_STRIP=symbols
for processor in "${processors[@]}"; do
  rustup target add --toolchain "$(rustup show active-toolchain | cut -d' ' -f1)" "$processor-unknown-linux-"{gnu,musl} 2>/dev/null
done

# Building leaves files in the folder of the sources, and takes them the next time. Links are files in a package.
mkdir -p "$folder/source/bindings"
cp -rL Cargo.toml Cargo.lock core io beatree history journal engine ops "$folder/source"
cp -rL bindings/python bindings/c "$folder/source/bindings"
wheel() {
  PLEACH_LIBRARY=$1 PLEACH_PLATFORM=$2 python -m build --wheel --outdir "$out" "$folder/source/bindings/python" >/dev/null
  rm -rf "$folder/source/bindings/python/build"
}
# A library as its wheel promises it: its processor, what it needs of the system, and no newer glibc.
inspect() { # library, processor in ELF, pattern of what it may need
  local head needed newest
  head=$(readelf -h "$1") needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  newest=$(readelf -V "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 || true)
  echo "$1: $2, needs" $needed $newest
  [[ $head == *"Machine:"*"$2"* ]] || { echo "it is for another processor" >&2 && exit 1; }
  if grep -vxE "$3" <<<"$needed" >&2; then exit 1; fi
  [[ $(printf '%s\n' "${newest:-GLIBC_2.17}" GLIBC_2.17 | sort -V | tail -n 1) == GLIBC_2.17 ]]
}
for processor in "${processors[@]}"; do
  elf=AArch64
  [[ $processor != x86_64 ]] || elf=X86-64
  cargo zigbuild --quiet --release -p pleach-c --target "$processor-unknown-linux-gnu.2.17"
  library=$target/$processor-unknown-linux-gnu/release/libpleach_c.so
  inspect "$library" "$elf" '(libc|libm|libpthread|libdl|librt|libutil|libgcc_s|ld-linux-.*)\.so\.[0-9]+'
  wheel "$library" "manylinux_2_17_$processor.manylinux2014_$processor"
  # A shared library with musl links it dynamically.
  RUSTFLAGS="-C target-feature=-crt-static" cargo zigbuild --quiet --release -p pleach-c --target "$processor-unknown-linux-musl"
  library=$target/$processor-unknown-linux-musl/release/libpleach_c.so
  inspect "$library" "$elf" 'libc\.so|libc\.musl-.*'
  wheel "$library" "musllinux_1_2_$processor"
done
python -m build --sdist --outdir "$out" "$folder/source/bindings/python" >/dev/null
twine check --strict "$out"/pleach-*
ls -l "$out" | awk 'NR > 1 { print $5, $9 }'

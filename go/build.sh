#!/usr/bin/env bash
# Builds the library and puts it with its header into lib/, where the package looks for it. The folder go/ is complete
# then: it can be copied to where neither this repository nor Rust is. `--debug` takes the build of tests.
set -euo pipefail
cd "$(dirname "$0")"
profile=release
[[ ${1:-} == --debug ]] && profile=debug
target=$(cd .. && realpath -m "${CARGO_TARGET_DIR:-target}")
flags=()
[[ $profile == release ]] && flags=(--release)
(cd .. && cargo build --quiet -p pleach-c "${flags[@]}")
mkdir -p lib
cp ../c/include/pleach.h lib/
cp "$target/$profile/libpleach_c.a" lib/
[[ $profile == debug ]] || strip --strip-debug lib/libpleach_c.a

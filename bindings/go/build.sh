#!/usr/bin/env bash
# Builds the library and puts it with its header beside the Go files, which is what `go mod vendor` copies. The folder
# bindings/go/ is complete then: it can be copied to where neither this repository nor Rust is. `--debug` takes the build of tests. Cargo's
# variables and configuration hold, such as CARGO_BUILD_TARGET; STRIP names the `strip` of another target. Called for both
# targets, the folder serves both: a library has the name of its processor.
set -euo pipefail
cd "$(dirname "$0")/../.."
profile=(--release)
[[ ${1:-} == --debug ]] && profile=()
# Cargo says where the library is: that depends on its configuration.
library=$(cargo build --quiet -p pleach-c "${profile[@]}" --message-format=json-render-diagnostics |
  grep -o '"[^"]*/libpleach_c\.a"' | tail -n 1 | tr -d '"')
case $(grep -m 1 Machine: <<<"$(readelf -h "$library" 2>/dev/null)") in
*X86-64) processor=amd64 ;;
*AArch64) processor=arm64 ;;
*) echo "$library is for a processor that the Go package does not know" >&2 && exit 1 ;;
esac
cp bindings/c/include/pleach.h bindings/go/
cp "$library" "bindings/go/libpleach_c_$processor.a"
[[ ${1:-} == --debug ]] || "${STRIP:-strip}" --strip-debug "bindings/go/libpleach_c_$processor.a"

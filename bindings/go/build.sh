#!/usr/bin/env bash
# Builds the library and puts it with its header beside the Go files, which is what `go mod vendor` copies. The folder
# bindings/go/ is complete then: it can be copied to where neither this repository nor Rust is. `--debug` takes the build of tests. Cargo's
# variables and configuration hold, such as CARGO_BUILD_TARGET; STRIP names the `strip` of another target.
set -euo pipefail
cd "$(dirname "$0")/../.."
profile=(--release)
[[ ${1:-} == --debug ]] && profile=()
# Cargo says where the library is: that depends on its configuration.
library=$(cargo build --quiet -p pleach-c "${profile[@]}" --message-format=json-render-diagnostics |
  grep -o '"[^"]*/libpleach_c\.a"' | tail -n 1 | tr -d '"')
cp bindings/c/include/pleach.h bindings/go/
cp "$library" bindings/go/
[[ ${1:-} == --debug ]] || "${STRIP:-strip}" --strip-debug bindings/go/libpleach_c.a

#!/usr/bin/env bash
# Builds the Go example with the static library, and runs it, where Go and a C compiler are installed.
set -euo pipefail
cd "$(dirname "$0")"

for tool in go cc; do
  if ! command -v "$tool" >/dev/null; then
    echo "the Go example: SKIPPED, \`$tool\` is not installed here"
    exit
  fi
done
root=$(realpath ../../..)
target=$(cd "$root" && realpath -m "${CARGO_TARGET_DIR:-target}")
(cd "$root" && cargo build --quiet -p pleach-c)
# A folder with the archive alone: beside it is the shared library, which a linker would prefer.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$target/debug/libpleach_c.a" "$folder"
export CGO_ENABLED=1 CGO_LDFLAGS="-L$folder -lpleach_c -lgcc_s -lutil -lrt -lpthread -lm -ldl" GOTOOLCHAIN=local
if unformatted=$(gofmt -l . 2>/dev/null) && [[ -n $unformatted ]]; then
  echo "not formatted: $unformatted" >&2
  exit 1
fi
go vet ./... && go run .

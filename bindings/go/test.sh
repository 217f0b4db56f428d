#!/usr/bin/env bash
# Tests the Go package, with the race detector and all checks of cgo, and in an empty folder, as a stranger has it.
set -euo pipefail
cd "$(dirname "$0")"
for tool in go cc; do
  if ! command -v "$tool" >/dev/null; then
    echo "the Go package: SKIPPED, \`$tool\` is not installed here"
    exit
  fi
done
export CGO_ENABLED=1 GOTOOLCHAIN=local
wanted=go$(sed -n 's/^go //p' go.mod)
if [[ $(printf '%s\n' "$wanted" "$(go env GOVERSION)" | sort -V | head -n 1) != "$wanted" ]]; then
  echo "the Go package: SKIPPED, $(go env GOVERSION) is installed here and it needs $wanted"
  exit
fi
if unformatted=$(gofmt -l . 2>/dev/null) && [[ -n $unformatted ]]; then
  echo "not formatted: $unformatted" >&2
  exit 1
fi
./build.sh --debug
go vet ./...
GOEXPERIMENT=cgocheck2 go test -race ./...
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r . "$folder/pleach"
mkdir "$folder/program"
cp example_test.go "$folder/program/main.go"
cd "$folder/program"
# The example as a program of its own.
sed -i 's/^package pleach_test$/package main/; s/^func Example() {$/func main() {/' main.go
go mod init program 2>/dev/null
go mod edit -require pleach@v0.0.0 -replace pleach=../pleach
wanted=$(sed -n 's|^\t// \(commit .*\)$|\1|p' ../pleach/example_test.go)
go run . | diff - <(echo "$wanted")
# Distributions and closed networks build from `vendor` alone.
go mod vendor
said=$(CGO_ENABLED=0 go build . 2>&1) && echo "it builds without cgo" >&2 && exit 1
[[ $(wc -l <<<"$said") == 2 && $said == *"pleach needs cgo"* ]] || { echo "without cgo: $said" >&2 && exit 1; }
mv ../pleach ../elsewhere
go run -mod=vendor . | diff - <(echo "$wanted")

#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh virtual environment and runs the tests there. Without a package registry
# the tests run by unittest, and without setuptools on a copy of the package. What is missing is said and left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONDONTWRITEBYTECODE=1

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
  echo "python: SKIPPED, Python 3.9 or later is not installed here"
  exit
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if ! python3 -m venv "$folder/venv" >/dev/null 2>&1; then
  echo "python: SKIPPED, the module venv is not installed here"
  exit
fi
python=$folder/venv/bin/python
quiet=(--quiet --disable-pip-version-check)
# The build of tests, rather than one with optimizations of its own.
PLEACH_LIBRARY=$(cargo build --quiet -p pleach-c --message-format=json-render-diagnostics |
  grep -o '"[^"]*/libpleach_c\.so"' | tail -n 1 | tr -d '"')
export PLEACH_LIBRARY

# A registry that cannot be had answers after some seconds.
if "$python" -m pip install "${quiet[@]}" --retries 0 --timeout 10 pytest 'setuptools>=77' 2>/dev/null; then
  # Building leaves files in the folder of the sources, and takes them the next time.
  made=$folder/bindings
  mkdir -p "$made/c/include" && cp bindings/c/include/pleach.h "$made/c/include"
  cp -rL bindings/python "$made/python" && rm -rf "$made/python/build"
  "$python" -m pip wheel "${quiet[@]}" --no-build-isolation --no-deps --wheel-dir "$folder" "$made/python"
  "$python" -m pip install "${quiet[@]}" --no-deps --no-index "$folder"/pleach-*.whl
  (cd "$folder" && "$python" -m pytest --quiet "$OLDPWD/bindings/python/tests" -p no:cacheprovider)
  # Editable, in both ways that setuptools has; and where cargo says that the library is, in whatever folder.
  mkdir "$folder/elsewhere" "$folder/bin"
  mv "$made" "$folder/elsewhere" && cd "$folder"
  printf '#!/bin/sh\necho '\''{"reason":"compiler-artifact","filenames":["%s"]}'\''\n' "$PLEACH_LIBRARY" >bin/cargo
  chmod +x bin/cargo
  for mode in lenient strict; do
    "$python" -m pip uninstall "${quiet[@]}" --yes pleach
    rm -f elsewhere/bindings/python/src/pleach/{libpleach_c.so,pleach.h}
    PATH=$folder/bin:$PATH PLEACH_LIBRARY='' "$python" -m pip install "${quiet[@]}" --no-build-isolation --no-deps \
      --config-settings editable_mode="$mode" -e elsewhere/bindings/python
    "$python" -c "import pleach; print('editable, $mode:', pleach.version())"
  done
else
  echo "the wheel and pytest: SKIPPED, no package registry can be had; unittest runs the tests on a copy"
  cp -r bindings/python/src/pleach "$folder" && cp "$PLEACH_LIBRARY" bindings/c/include/pleach.h "$folder/pleach"
  PYTHONPATH=$folder "$python" -m unittest discover --start-directory bindings/python/tests
fi

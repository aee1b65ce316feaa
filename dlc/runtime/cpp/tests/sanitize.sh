#!/bin/sh
# Builds and runs the C++ tests plain, under ASan and UBSan, and under TSan; or those named.
#   sanitize.sh [release] [address] [thread]
set -eu
cd "$(dirname "$0")/.."
for preset in ${*:-release address thread}; do
  echo "--- $preset"
  cmake --preset "$preset" -DPython_EXECUTABLE="$(command -v "${PYTHON:-python3}")" >/dev/null
  cmake --build --preset "$preset" -j 2
  ctest --preset "$preset"
done

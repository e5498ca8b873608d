#!/usr/bin/env bash
# Runs the tests on every Python that MXNet supports and that is found here, each in a virtual environment of its own:
# scripts/test_versions.sh [pytest's arguments, such as tests/ps]. Ends with a line per version, and with 0 only if all
# that were found have passed. VERSIONS="3.9 3.12" looks for these alone.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHON

summary=()
passed=0
failed=0
for version in ${VERSIONS:-3.9 3.10 3.11 3.12}; do
    if ! found=$(scripts/find_python.sh "$version"); then
        summary+=("Python $version: not found")
    elif PYTHON=$found VENV=$PWD/.venv-$version bash -ec '
        source scripts/venv.sh mxnet test bench
        exec "$python" -m pytest "$@"' pytest "$@"; then
        summary+=("Python $version: passed")
        passed=$((passed + 1))
    else
        summary+=("Python $version: FAILED")
        failed=$((failed + 1))
    fi
done

echo
printf '%s\n' "${summary[@]}"
[ "$failed" = 0 ] && [ "$passed" != 0 ]

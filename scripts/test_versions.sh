#!/usr/bin/env bash
# Runs the tests on every Python that MXNet supports and that is found here, each in a virtual environment of its own:
# scripts/test_versions.sh [pytest's arguments, such as tests/ps]. Ends with a line per version, and with 0 only if all
# passed. VERSIONS="3.9 3.12" runs these alone, and fails where one of them is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

# Prints a Python of version $1 that can make virtual environments.
find_version() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if "$candidate" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

summary=()
status=0
for version in ${VERSIONS:-3.9 3.10 3.11 3.12}; do
    if ! found=$(find_version "$version"); then
        summary+=("Python $version: not found")
        [ -z "${VERSIONS:-}" ] || status=1
        continue
    fi
    output=$(mktemp)
    code=0
    (
        export PYTHON=$found VENV=$PWD/.venv-$version
        source scripts/venv.sh mxnet test bench
        exec "$python" -m pytest "$@"
    ) 2>&1 | tee "$output" || code=1
    [ "$code" = 0 ] || status=1
    summary+=("Python $version: $([ "$code" = 0 ] && echo passed || echo FAILED) ($(tail -n 1 "$output" | tr -d '='))")
    rm -f "$output"
done

printf '%s\n' "" "${summary[@]}"
case "${summary[*]}" in *passed* | *FAILED*) exit "$status" ;; esac
exit 1

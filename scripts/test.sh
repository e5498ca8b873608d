#!/usr/bin/env bash
# From a bare checkout to a passed test suite: scripts/test.sh [pytest's arguments, such as -m "not slow" or tests/ps].
set -euo pipefail
source "$(dirname "$0")/venv.sh" mxnet test bench
cd "$root"
"$python" -m ruff check --quiet
"$python" -m ruff format --check --quiet
"$python" -m mypy
exec "$python" -m pytest "$@"

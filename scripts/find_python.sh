#!/usr/bin/env bash
# Prints the first Python of the given versions that is here and can make virtual environments, or fails:
# scripts/find_python.sh 3.11 3.9. If $PYTHON is set, only that is looked at.
pyenv=${PYENV_ROOT:-$HOME/.pyenv}/versions
for version in "$@"; do
    candidates=("python$version" python3 python "$pyenv/$version".*/bin/python)
    if [ -n "${PYTHON:-}" ]; then
        candidates=("$PYTHON")
    fi
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
            echo "$candidate"
            exit
        fi
    done
done
exit 1

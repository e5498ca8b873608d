# To be sourced: `source scripts/venv.sh mxnet test` makes or reuses .venv in the checkout, with AutoByte and these of its
# extras installed in place, and leaves its interpreter in $python. Repeating it costs nothing until setup.cfg changes.
# $VENV names another directory than .venv, $PYTHON the Python to make it with.
# Python 3.12 is tried last: MXNet 1.9.1 is older than the NumPy that it needs there.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-$root/.venv}
python=$venv/bin/python

fail() {
    echo "autobyte: $*" >&2
    exit 1
}

make_venv() {
    local extra wanted found error missing=""
    wanted=$(cat "$root/setup.cfg" "$root/pyproject.toml" "$root/scripts/venv.sh" <(echo "$root") | cksum)
    for extra in "$@"; do
        [ "$(cat "$venv/autobyte-$extra" 2>/dev/null)" = "$wanted" ] || missing=yes
    done
    if [ -z "$missing" ] && "$python" -c "" 2>/dev/null; then
        return
    fi
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        found=$("$root/scripts/find_python.sh" 3.11 3.10 3.9 3.12) \
            || fail "needs Python 3.9 to 3.12 with its venv module, which MXNet 1.9.1 supports; found none (install" \
                "python3.11 and python3.11-venv, or say where it is: PYTHON=/path/to/python3.11)"
        echo "autobyte: making ${venv##*/} with $("$found" --version) ($found)"
        "$found" -m venv --clear "$venv"
    fi
    echo "autobyte: installing AutoByte and what it needs ($*) into ${venv##*/}"
    "$python" -m pip install -qq --disable-pip-version-check --editable "$root[$(IFS=,; echo "$*")]" \
        || fail "installing failed; see pip's message above"
    if [[ " $* " == *" mxnet "* ]]; then
        error=$(env -u DMLC_ROLE "$python" -c "import ps.mxnet" 2>&1) \
            || fail "MXNet cannot be imported: ${error##*$'\n'} (of the system it needs libgomp1 and libquadmath0)"
    fi
    for extra in "$@"; do
        echo "$wanted" >"$venv/autobyte-$extra"
    done
}

make_venv "$@"

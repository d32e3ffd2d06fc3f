#!/bin/sh
# make-venv.sh PYTHON: makes .venv, or keeps the one that is there and works.
set -eu
python=$1

fail() { echo "make: $*" >&2; exit 1; }

command -v "$python" >/dev/null || fail "$python not found; install Python 3.11 or newer, or say make PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "phasewatch needs Python 3.11 or newer, and $python is $("$python" -V 2>&1); say make PYTHON=/path/to/python3.11"

if .venv/bin/python -m pip --version >/dev/null 2>&1; then exit 0; fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian splits these two out of python3.
    test "$(id -u)" = 0 || fail "$python cannot make a virtual environment; as root: apt-get install python3-venv"
    "$(dirname "$0")"/apt-install.sh python3-venv
fi
"$python" -m venv --clear .venv || fail "$python -m venv .venv failed; see above"

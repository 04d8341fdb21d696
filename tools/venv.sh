#!/usr/bin/env bash
# venv.sh FOLDER PYTHON: makes a developer's environment from requirements/dev.txt, or says what is missing.
# PYTHON is a command, or a version such as 3.13, which is looked for and, where it cannot be found, fetched by uv.
set -euo pipefail
folder=$1 python=$2 root=$(cd "$(dirname "$0")/.." && pwd)

find_python() {
    local version=$1 candidate
    for candidate in "python$version" "$HOME/.pyenv/versions/$version".*/bin/python; do
        # A version manager's shim may stand in PATH and not work.
        if "$candidate" -c 'import ensurepip' >/dev/null 2>&1; then echo "$candidate" && return; fi
    done
    echo "no working python$version on this machine: asking uv for one" >&2
    UV_PYTHON_INSTALL_DIR="$root/.ironserve/python" "$root/.venv/bin/uv" python install --quiet "$version" >&2
    UV_PYTHON_INSTALL_DIR="$root/.ironserve/python" "$root/.venv/bin/uv" python find --managed-python "$version"
}

case $python in [0-9]*) python=$(find_python "$python") ;; esac
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "$python: Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2
    exit 2
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    echo "installing system packages: $package"
    [ "$(id -u)" = 0 ] || { echo "not root: run  sudo apt-get install $package" >&2; exit 2; }
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
fi
# In PATH it may be that of the very folder which is made anew.
python=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
echo "making $folder with $("$python" --version) (about 30 s)"
rm -rf "$folder"
"$python" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$root/requirements/dev.txt" \
    2> >(grep -v 'is ignored: it is neither' >&2)
touch "$folder/.complete"

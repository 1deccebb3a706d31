#!/bin/bash
# Makes sure that a Python environment holds some packages; quiet when it does.
#
#   tools/venv.sh FOLDER PACKAGE...
set -euo pipefail

folder=$1
shift
if [ ! -x "$folder/bin/python" ]; then
    "$(dirname "$0")/deps.sh" --install python
    echo "splat: making a Python environment in $folder"
    python3 -m venv "$folder" || { echo "splat: python3 -m venv $folder failed" >&2; exit 1; }
fi
mkdir -p "$folder/have"
missing=()
for package in "$@"; do
    [ -e "$folder/have/$package" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "splat: installing ${missing[*]} with pip into $folder"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "${missing[@]}" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "splat: pip could not install ${missing[*]}: its last words are above" >&2
    exit 1
fi
for package in "${missing[@]}"; do
    touch "$folder/have/$package"
done

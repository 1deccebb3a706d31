#!/bin/bash
# Prepares what the tests need (a Python environment, NVRTC) and runs them all; `make check` calls it after the build.
# The last line is "N passed, M failed", and the exit code is 1 when M is not 0.
set -uo pipefail

cd "$(dirname "$0")/.."
export BUILD=${BUILD:-build}
venv=build/venv # one for all build folders: it holds 150 MB of NVRTC where there is no toolkit

mapfile -t packages <tests/requirements.txt
tools/venv.sh "$venv" "${packages[@]}" || { echo "0 passed, 1 failed"; exit 1; }
# Without NVRTC the tests that compile kernels fail: they say so themselves.
SPLAT_NVRTC=$(tools/nvrtc.sh "$venv") && export SPLAT_NVRTC
exec "$venv/bin/python" tests/run.py "$@"

#!/bin/bash
# Finds NVRTC, the compiler of the generated kernels, or installs it with pip; prints the library's path on stdout.
#
#   SPLAT_NVRTC=$(tools/nvrtc.sh FOLDER)     FOLDER: the Python environment to install into when there is none
#
# Looked at in turn: $SPLAT_NVRTC, $CUDA_HOME, /usr/local/cuda*, what the dynamic linker knows, the Python environment.
set -uo pipefail

folder=$1
here=$(dirname "$0")

first() { # the first argument that is a file, as an absolute path
    local file
    for file in "$@"; do
        [ -e "$file" ] && { echo "$(cd "$(dirname "$file")" && pwd)/$(basename "$file")"; return 0; }
    done
    return 1
}

in_environment() {
    first "$folder"/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.* \
        "$folder"/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.*
}

# The toolkit's own name has a version (libnvrtc.so.13); names with "alt" or "builtins" are other things.
first ${SPLAT_NVRTC:+"$SPLAT_NVRTC"} && exit 0
first ${CUDA_HOME:+"$CUDA_HOME"/lib64/libnvrtc.so.[0-9]*} /usr/local/cuda/lib64/libnvrtc.so.[0-9]* \
    /usr/local/cuda-*/lib64/libnvrtc.so.[0-9]* && exit 0
linker=$(ldconfig -p 2>/dev/null | sed -n 's/^\tlibnvrtc\.so\.[0-9]* .*=> //p' | head -n 1)
first ${linker:+"$linker"} && exit 0
in_environment && exit 0
"$here/venv.sh" "$folder" nvidia-cuda-nvrtc >&2 && in_environment && exit 0
echo "splat: NVRTC is neither on this machine nor could be installed with pip: install a CUDA toolkit, or set SPLAT_NVRTC" >&2
exit 1

#!/bin/bash
# One mask through every stage; `make demo` calls it after the build. Everything it writes is in $BUILD/demo.
set -euo pipefail

cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
out=$BUILD/demo
mkdir -p "$out"
splatc=$BUILD/splatc

pattern='window(256) | rows(0, 64) | cols(0, 64)'
mask=(--pattern "$pattern" --seq 4096)
shape=(--batch 1 --heads 2 --head-dim 64 --dtype bf16)

step() { printf '\n== %s\n\n' "$1"; }
show() { # prints a command as one would type it, then runs it
    printf '$ splatc'
    local word
    for word in "$@"; do
        case $word in
            *[!A-Za-z0-9_./=-]*) printf " '%s'" "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$splatc" "$@"
}

# A cache of its own, emptied: so that the first compile below is one.
export SPLAT_CACHE_DIR=$PWD/$out/cache
[ "${out#/}" = "$out" ] || export SPLAT_CACHE_DIR=$out/cache
unset SPLAT_CACHE
"$splatc" cache clear >/dev/null
SPLAT_NVRTC=$(tools/nvrtc.sh build/venv)
export SPLAT_NVRTC

step "1. What splat finds in a Longformer mask: a window of 256 to each side, 64 global tokens"
show explain "${mask[@]}" "${shape[@]}" --png "$out/longformer.png"

step "2. The CUDA source generated for it"
show dump "${mask[@]}" "${shape[@]}" --arch sm_90a -o "$out/longformer.cu"
echo "$(wc -l <"$out/longformer.cu") lines in $out/longformer.cu; it begins:"
sed -n 1,12p "$out/longformer.cu"

step "3. Compiled for sm_90a into a cache; the second time it is there"
show compile "${mask[@]}" "${shape[@]}" --arch sm_90a --quiet
show compile "${mask[@]}" "${shape[@]}" --arch sm_90a --quiet

step "4. Attention, on the GPU or else on the CPU, checked against a double-precision reference"
show run "${mask[@]}" "${shape[@]}" --check

step "5. And again: on a GPU the kernel now comes from the cache"
show run "${mask[@]}" "${shape[@]}" --check
show cache stat --dir "$SPLAT_CACHE_DIR"

printf '\nWritten: %s (the picture), %s (the kernel)\n' "$out/longformer.png" "$out/longformer.cu"

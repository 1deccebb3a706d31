#!/bin/bash
# Runs small launches of every family of kernels of attention and of operators on values under NVIDIA's compute-sanitizer:
# memcheck (accesses) and racecheck (shared memory). Needs a GPU. One line a launch and tool, then a total; exit status 1
# when anything is found or fails.
#
#   tools/sanitize.sh [WORD]      launches with WORD in their lines; SPLATC, SANITIZER and JOBS (8) name other programs and numbers
set -uo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
splatc=${SPLATC:-$here/build/splatc}
sanitizer=${SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)}
[ -x "$splatc" ] || { echo "sanitize.sh: there is no program '$splatc'; run make, or set SPLATC" >&2; exit 1; }
[ -x "$sanitizer" ] || { echo "sanitize.sh: compute-sanitizer was not found; install the CUDA toolkit, or set SANITIZER" >&2; exit 1; }

folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
export SPLAT_CACHE_DIR=$folder/cache SPLAT_SELF_CHECK=off
mkdir -m 700 "$SPLAT_CACHE_DIR"

# A name; options of splatc run. Every launch is checked against double precision, too.
launches() {
    cat <<'LIST'
hopper|--pattern causal --seq 300 --heads 2 --head-dim 64
hopper 128x160|--pattern causal --seq 400 --head-dim 128 --tile 128x160
hopper 192x128|--pattern causal --seq 500 --head-dim 64 --tile 192x128
hopper 64x64, all predicates|--pattern window(40)|strided(7)|documents(100,57,143) --seq 300 --head-dim 64 --tile 64x64
hopper, D 256|--pattern window(100) --seq 300 --head-dim 256 --dtype fp16
portable|--pattern causal --seq 300 --heads 2 --head-dim 64 --tile 64x32
portable, all predicates|--pattern window(40)|strided(7)|documents(100,57,143) --seq 300 --head-dim 128 --tile 128x32 --dtype fp16
folded|--pattern causal --seq 4 --kv-seq 300 --heads 64 --kv-heads 8 --batch 32 --head-dim 64
folded, parts, combine|--pattern full --seq 1 --kv-seq 4096 --heads 16 --kv-heads 2 --head-dim 128
parts, combine|--pattern full --seq 1 --kv-seq 4096 --heads 2 --head-dim 64
views and merging passes|--pattern axial(64) --seq 1024 --batch 8 --heads 8 --head-dim 64
sddmm|--op sddmm --pattern window(40)|strided(7) --seq 300 --heads 2 --head-dim 64
softmax|--op softmax --pattern window(40)|strided(7) --seq 300 --heads 2
spmm|--op spmm --pattern window(40)|strided(7) --seq 300 --heads 2 --head-dim 64
spmm_transposed|--op spmm_transposed --pattern window(40)|strided(7) --seq 300 --heads 2 --head-dim 64
LIST
}

run_one() { # TOOL NAME|OPTIONS
    local tool=$1 name=${2%%|*} options start=$SECONDS log=$folder/$BASHPID.log found status verdict=ok
    set -f
    options=(${2#*|})
    "$sanitizer" --tool "$tool" --error-exitcode 9 "$splatc" run "${options[@]}" --check --repeat 1 --quiet >"$log" 2>&1
    status=$?
    found=$(grep -E '(ERROR|RACECHECK) SUMMARY' "$log" | sed 's/^=* *//' | tail -n 1)
    # Without a summary nothing was looked at.
    [ $status -eq 0 ] && [ -n "$found" ] && ! grep -qE 'SUMMARY: [1-9]' "$log" || verdict=FAILED
    printf '%-6s %-9s %-30s %s (%d s)\n' "$verdict" "$tool" "$name" "${found:-no summary, exit status $status}" $((SECONDS - start))
    [ $verdict = ok ] || grep -E '^=+ |splatc' "$log" | grep -v SUMMARY | head -n 12 | sed 's/^/    /'
}

export -f run_one
export sanitizer splatc folder
began=$SECONDS
# Kernels are compiled once, for both tools.
launches | grep -F -- "${1:-}" | sed 's/^[^|]*|//' |
    xargs -P "${JOBS:-8}" -d '\n' -n 1 bash -c 'set -f; "$splatc" run $0 --repeat 1 --quiet >/dev/null 2>&1'
for tool in memcheck racecheck; do
    launches | grep -F -- "${1:-}" | sed "s/^/$tool /"
done | xargs -P "${JOBS:-8}" -d '\n' -n 1 bash -c 'run_one "${0%% *}" "${0#* }"' | tee "$folder/lines"
good=$(grep -c '^ok ' "$folder/lines")
bad=$(grep -c '^FAILED ' "$folder/lines")
echo "$good clean, $bad not, $((SECONDS - began)) s"
[ "$good" -gt 0 ] && [ "$bad" -eq 0 ]

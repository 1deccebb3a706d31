#!/bin/bash
# Finds and installs what splat is built and tested with.
#
#   tools/deps.sh --tell build            says what is missing; fails when something is
#   tools/deps.sh --install build tests   installs what is missing; quiet when nothing is
#
# Sets: library, build (library, and what splatc needs), tests (on top of build), deep (on top of tests), python (to make
# a Python environment; part of tests).
# A thing is looked for by what is used of it (a command, a header), so that hand-made installations count too.
set -uo pipefail

usage() { echo "usage: tools/deps.sh --tell|--install library|build|tests|deep|python..." >&2; exit 2; }

have_command() { command -v "$1" >/dev/null 2>&1; }

# Whether the compiler finds a header. Before there is a compiler, its usual places are looked at.
have_header() {
    local cc=${CC:-gcc}
    if have_command "$cc"; then
        echo "#include <$1>" | "$cc" ${2:+-include $2} -E -x c - >/dev/null 2>&1
    else
        [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]
    fi
}

# clang has OpenMP in a package of its own; gcc brings it.
have_openmp() {
    local cc=${CC:-gcc}
    [ "${cc#*clang}" = "$cc" ] || ! have_command "$cc" || echo '#include <omp.h>' | "$cc" -fopenmp -E -x c - >/dev/null 2>&1
}

have_venv() { python3 -c 'import venv, ensurepip' >/dev/null 2>&1; }

missing=()
need() { # need PACKAGE test...
    local package=$1
    shift
    "$@" || missing+=("$package")
}

look_library() {
    need "${CC:-gcc}" have_command "${CC:-gcc}"
    need libc6-dev have_header stdio.h
    need make have_command make
    need libxxhash-dev have_header xxhash.h
    need libomp-dev have_openmp
}

look_build() {
    look_library
    need pkg-config have_command pkg-config
    need libpng-dev have_header png.h
    need libjansson-dev have_header jansson.h
}

look_tests() {
    local cmocka_needs
    cmocka_needs=$(mktemp)
    printf '#include <stdarg.h>\n#include <stddef.h>\n#include <setjmp.h>\n#include <stdint.h>\n' >"$cmocka_needs"
    need libcmocka-dev have_header cmocka.h "$cmocka_needs"
    rm -f "$cmocka_needs"
    need binutils have_command nm
    need g++ have_command g++
    need clang have_command clang
    need libclang-rt-dev have_fuzzer
    need libomp-dev have_clang_openmp
    look_python
}

# clang's fuzzer, which comes in a package beside it.
have_fuzzer() {
    have_command clang && echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        clang -fsanitize=fuzzer,address -x c - -o /dev/null >/dev/null 2>&1
}

have_clang_openmp() { echo '#include <omp.h>' | clang -fopenmp -E -x c - >/dev/null 2>&1; }

look_deep() {
    need valgrind have_command valgrind
}

look_python() {
    need python3 have_command python3
    need python3-venv have_venv
}

[ $# -ge 2 ] || usage
mode=$1
shift
for set in "$@"; do
    case $set in
        library) look_library ;;
        build) look_build ;;
        tests) look_tests ;;
        deep) look_deep ;;
        python) look_python ;;
        *) usage ;;
    esac
done
[ ${#missing[@]} -eq 0 ] && exit 0

by_hand="install ${missing[*]} (Debian and Ubuntu names) and try again"
if [ "$mode" = --tell ]; then
    echo "splat: missing packages: $by_hand; 'make demo' and 'make check' install them when run as root" >&2
    exit 1
fi
[ "$mode" = --install ] || usage
if ! have_command apt-get; then
    echo "splat: this machine has no apt-get: $by_hand" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "splat: installing packages needs root: $by_hand, for instance with: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi

echo "splat: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
try_install() { apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
if ! try_install; then
    # The package lists may be missing or old.
    if ! { apt-get update && try_install; } >>"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "splat: apt-get could not install ${missing[*]}: its last words are above" >&2
        exit 1
    fi
fi

#!/usr/bin/env bash
# Installs the missing packages for building (run), testing (test), the checks of .ci/run (ci), or comparisons with PyTorch
# (pytorch: a .venv for scripts/*.py). If nothing is missing it does nothing, quickly and offline.
#   scripts/setup.sh [run|test|ci|pytorch]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "setup.sh: $*" >&2; exit 1; }
what=${1:-run}
case "$what" in run | test | ci | pytorch) ;; *) fail "found '$what', expected run, test, ci or pytorch" ;; esac

# The required packages, one per line: the names in Debian, Fedora, Arch and Homebrew.
missing=$(
    command=${CXX:-g++}                                         # may have words before and after the compiler's name
    compiler=${command#ccache }
    compiler=${compiler%% *}
    headers='CLI/CLI.hpp libcli11-dev cli11-devel cli11 cli11
        nlohmann/json.hpp nlohmann-json3-dev json-devel nlohmann-json nlohmann-json
        pcre2.h libpcre2-dev pcre2-devel pcre2 pcre2
        editline/readline.h libedit-dev libedit-devel libedit libedit
        zlib.h zlib1g-dev zlib-devel zlib zlib
        zstd.h libzstd-dev libzstd-devel zstd zstd'
    [ "$what" = run ] || headers+='
        gtest/gtest.h libgtest-dev gtest-devel gtest googletest'
    command -v make >/dev/null || echo make make make make
    # clang's OpenMP is a separate package, in Debian with the same version.
    name=$(basename "$compiler")
    if [[ $name = clang++* ]]; then
        version=${name#clang++}
        if ! command -v "$compiler" >/dev/null; then
            echo "clang$version clang clang llvm"
            [ -n "$version" ] || echo libomp-dev libomp-devel openmp libomp
            command=false
        fi
        [ -n "$version" ] || version=-$("$compiler" -dumpversion 2>/dev/null | cut -d. -f1)
        [ "$version" = - ] || headers+="
        omp.h libomp$version-dev libomp-devel openmp libomp"
    else
        command -v "$compiler" >/dev/null || { echo "$([[ $name = g++* ]] && echo "$name" || echo g++) gcc-c++ gcc gcc"; command=false; }
    fi
    while read -r header packages; do
        printf '#if !__has_include(<%s>)\n%s\n#endif\n' "$header" "$packages"
    done <<<"$headers" | { $command -x c++ -std=c++20 -E -P - 2>/dev/null || cut -d' ' -f2- <<<"${headers//        /}"; }
    if [ "$(uname -s)" = Darwin ] && command -v brew >/dev/null; then  # OpenMP for Apple's clang, for the Makefile
        [ -f "$(brew --prefix)/opt/libomp/include/omp.h" ] || echo libomp-dev libomp-devel openmp libomp
    fi
    # scripts/run_tests.sh needs bash 5 and timeout, which macOS lacks.
    [ "$what" = run ] || [ "${BASH_VERSINFO[0]}" -ge 5 ] || echo bash bash bash bash
    [ "$what" = run ] || command -v mpicxx >/dev/null || echo libopenmpi-dev openmpi-devel openmpi open-mpi
    [ "$what" = run ] || command -v mpirun >/dev/null || echo openmpi-bin openmpi openmpi open-mpi
    [ "$what" = run ] || command -v timeout >/dev/null || echo coreutils coreutils coreutils coreutils
    # Python fetches the data (pip) and reads the tests' results.
    command -v python3 >/dev/null || echo python3 python3 python python
    [ -f data/tinyshakespeare.txt ] && [ -f data/vocab.bpe ] ||
        python3 -c 'import pip' 2>/dev/null || echo python3-pip python3-pip python-pip python
    [ "$what" != ci ] || command -v clang-format >/dev/null ||
        echo clang-format clang-tools-extra clang clang-format
    [ "$what" != ci ] || compgen -G "$(clang++ -print-runtime-dir 2>/dev/null)/*fuzzer*" >/dev/null ||
        printf '%s\n' 'clang clang clang llvm' 'libclang-rt-dev compiler-rt compiler-rt llvm'  # libFuzzer
    [ "$what" != ci ] || command -v valgrind >/dev/null || echo valgrind valgrind valgrind valgrind
    [ "$what" != pytorch ] || python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv python3 python python
    # make bench compares with PyTorch in its fastest configuration.
    [ "$what" != pytorch ] || python3 -c 'import ctypes.util as u; assert u.find_library("tcmalloc_minimal")' 2>/dev/null ||
        echo libtcmalloc-minimal4 gperftools-libs gperftools gperftools
)

log=$(mktemp)
trap 'rm -f "$log"' EXIT

if [ -n "$missing" ]; then
    if command -v apt-get >/dev/null; then column=1 install='apt-get install -y --no-install-recommends'
    elif command -v dnf >/dev/null; then column=2 install='dnf install'
    elif command -v pacman >/dev/null; then column=3 install='pacman -S --needed'
    elif command -v brew >/dev/null; then column=4 install='brew install'
    elif [ "$(uname -s)" = Darwin ]; then fail "needs Homebrew (brew.sh), and from it: $(cut -d' ' -f4 <<<"$missing" | sort -u | tr '\n' ' ')"
    else fail "needs these packages, by their names in Debian: $(cut -d' ' -f1 <<<"$missing" | tr '\n' ' ')"; fi
    packages=$(cut -d' ' -f$column <<<"$missing" | sort -u | tr '\n' ' ')
    [ $column = 1 ] || fail "some packages are missing; install them and try again: $install $packages"
    as_root=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "some packages are missing, and installing them needs root; as root: $install $packages"
        as_root=sudo
    fi
    echo "installing ${packages% }"
    apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1; }
    # Outdated package lists are not an error, as long as the packages install.
    apt update || true
    # shellcheck disable=SC2086  # one word a package
    apt install -y --no-install-recommends $packages || { cat "$log" >&2; fail "apt-get could not install ${packages% }"; }
fi

if [ "$what" = pytorch ] && ! cmp -s scripts/requirements.txt .venv/installed; then
    echo "installing PyTorch and others of scripts/requirements.txt into .venv"
    { python3 -m venv .venv && .venv/bin/python -m pip install --disable-pip-version-check -r scripts/requirements.txt; } \
        >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "pip could not install scripts/requirements.txt"; }
    cp scripts/requirements.txt .venv/installed
fi

#!/usr/bin/env bash
# Compiles the CUDA kernels, as their tests use them, for NVIDIA GPUs, and fails if a kernel spills registers or has an
# array in local memory. Also runs the tests if there is a GPU. Ends with "N passed, N failed[, N skipped]". With WERROR
# set, as by .ci/run, a warning is a failure.
#   scripts/check_cuda.sh [ARCHITECTURE...]     sm_80, sm_90 and this machine's GPU unless given
# Without a GPU only the program's own kernels are compiled, those of GPT-2, the norms and the ranks' sum; with ALL=1 the
# others too. NCCL's library is loaded without a GPU as well.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ ! -x "$nvcc" ]; then
    echo "check_cuda.sh: no nvcc here (CUDA Toolkit 12 or newer): kernels were not compiled for a GPU"
    echo '0 passed, 0 failed, 1 skipped'
    exit
fi
out=build/cuda
mkdir -p $out
flags=(-std=c++20 -O3 -I. -x cu ${WERROR:+-Werror all-warnings} -Xptxas -v -Xcompiler -fopenmp,-march=native,-Wall,-Wextra
    -diag-suppress 1675) # 1675: GCC's pragmas in the CPU's headers
ALL=${ALL:-}
gpu=$(nvidia-smi -L 2>/dev/null | head -n 1)
if [ $# = 0 ]; then
    own=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
    set -- sm_80 sm_90
    [[ " $* " = *" sm_$own "* || -z $own ]] || set -- "$@" "sm_$own"
fi
for arch; do flags+=(-gencode "arch=compute_${arch#sm_},code=$arch"); done
for folder in .venv/lib/python*/site-packages/nvidia/nccl; do # of PyTorch, or of NCCL's own package
    [ ! -e "$folder/include/nccl.h" ] || flags+=(-I "$folder/include")
    [ ! -e "$folder/lib" ] || export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done

log=$out/log
source scripts/checks.sh
# Summarizes ptxas' report: the number of kernels, the most registers, and the kernels that use local memory.
report() { # log
    awk '/Compiling entry function/ { name = $0; sub(/.*function /, "", name); kernels++ }
         /bytes stack frame/ && ($1 + $5 + $9 > 0) { print "  " name ": " $0; bad = 1 }
         match($0, /Used [0-9]+/) { n = substr($0, RSTART + 5, RLENGTH - 5) + 0; if (n > most) most = n }
         END { print "  " kernels " kernels, at most " most " registers"; exit bad || !kernels }' "$1"
}

check "what the model's test stands on" make objects CXX=g++
# Compiles in parallel, with two cores for each.
names=() sources=()
for source in dev/test/cuda/*_test.cpp dev/*_cuda/ladder.cpp; do
    name=cuda_$(basename "$source" .cpp)
    [[ $name = cuda_broken* || $name = cuda_emulator* || $name = cuda_cublaslt* ]] && continue # of the emulator itself
    [ "$name" != cuda_ladder ] || name=ladder_$(basename "$(dirname "$source")")
    if [ "$name" = cuda_nccl_test ] && ! "$nvcc" "${flags[@]}" -E - <<<'#include <nccl.h>' >"$out/nccl.said" 2>&1; then
        skip "$name" 'no nccl.h here (libnccl-dev, or nvidia-nccl-cu13 from PyPI)'
        continue
    fi
    if [ -z "$gpu$ALL" ] && [[ $name != cuda_model_test && $name != cuda_layernorm_test && $name != cuda_nccl_test ]]; then
        skip "$name" 'no GPU here to run it on; ALL=1 compiles it'
        continue
    fi
    names+=("$name") sources+=("$source")
done
at_once=$((($(nproc) + 1) / 2))
for i in "${!names[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge $at_once ]; do wait -n; done
    {
        "$nvcc" -t 2 "${flags[@]}" -c "${sources[i]}" -o "$out/${names[i]}.o" >"$out/${names[i]}.said" 2>&1
        echo $? >"$out/${names[i]}.status"
    } &
done
wait
compiled() { # name
    cat "$out/$1.said"
    return "$(cat "$out/$1.status")"
}
# By their sources' names: build/ may still have objects of sources that have been renamed since.
objects=(io/*/*.cpp layers/*.cpp device/cpu/*.cpp device/cpu/gemm/*.cpp)
objects=("${objects[@]/#/build/native/}")
objects=("${objects[@]/%.cpp/.o}")
for name in "${names[@]}"; do
    check "$name compiles" compiled "$name" || continue
    [[ $name != ladder_* ]] || continue
    tr -d "'" <"$log" | c++filt >"$out/$name.log"
    check "$name: nothing in local memory" report "$out/$name.log"
    tail -n 1 "$log"
    check "$name links" "$nvcc" "$out/$name.o" "${objects[@]}" \
        -lgtest_main -lgtest -lgomp -lpcre2-8 -lz -lzstd -lcublasLt -o "$out/$name" || continue
    if [ -n "$gpu" ]; then
        check "$name runs on $gpu" timeout 600 "$out/$name"
    else
        [ "$name" != cuda_nccl_test ] || check "$name finds NCCL's functions" "$out/$name"
        skip "$name" 'no GPU here to run it on'
    fi
done
print_counts

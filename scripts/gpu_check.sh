#!/usr/bin/env bash
# Everything for a machine with an NVIDIA GPU: builds train_gpt2cu and its tests for it, runs them, runs NVIDIA's
# compute-sanitizer over the small ones, times every kernel and whole steps of GPT-2 124M, and writes what it measured to
# dev/results/GPU.txt. Where something is missing it says what it skips. Ends with "N passed, N failed[, N skipped]".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PATH=$PATH:/usr/local/cuda/bin
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
passed=0 failed=0 skipped=0
log=$(mktemp) data=$(mktemp -d)
trap 'rm -rf "$log" "$data"' EXIT
skip() { # what, why
    skipped=$((skipped + 1))
    echo "skip $1: $2"
}
check() { # what, command
    local what=$1
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $what"
    else
        failed=$((failed + 1))
        echo "FAIL $what"
        tail -n 30 "$log"
        return 1
    fi
}
counted() { # a command that ends with "N passed, N failed[, N skipped]"
    "$@" | tee "$log"
    if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
        skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
    else
        failed=$((failed + 1))
    fi
}

if ! command -v nvcc >/dev/null; then
    skip 'all of it' 'no nvcc here (CUDA Toolkit 12 or 13)'
    echo "$passed passed, $failed failed, $skipped skipped"
    exit
fi
scripts/setup.sh test && scripts/get_data.sh tinyshakespeare vocab.bpe
check 'train_gpt2cu builds' make train_gpt2cu
major=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
counted scripts/check_cuda.sh ${major:+sm_$major}

if [ -z "$gpu" ]; then
    skip 'compute-sanitizer, kernels and steps timed' 'no GPU here'
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
    exit
fi
results=dev/results/${gpu// /-}.txt
{
    echo "$gpu, $(nvcc --version | grep -o 'release [0-9.]*'), driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
    nvidia-smi --query-gpu=clocks.max.sm,clocks.max.mem,power.limit --format=csv
} >"$results"

for tool in memcheck racecheck synccheck initcheck; do
    if command -v compute-sanitizer >/dev/null; then
        check "compute-sanitizer $tool on GPT-2's steps" timeout 900 compute-sanitizer --tool $tool --error-exitcode 1 \
            build/cuda/cuda_model_test --gtest_filter='*Of*'
    else
        skip "compute-sanitizer $tool" 'not installed'
    fi
done

for ladder in dev/*_cuda; do
    name=$(basename "$ladder")
    check "ladder of $name" make -C dev "$name" && { echo; echo "== $name"; dev/build/"$name"; } >>"$results" 2>&1
done

./train_gpt2cu tokenize data/tinyshakespeare.txt "$data/text.bin" --tokenizer gpt2 >/dev/null
step() { # batch, options
    local batch=$1
    shift
    rm -rf "$data/out"
    if check "124M B=$batch T=1024 $*" ./train_gpt2cu --model d12 --tokenizer gpt2 --data "$data/text.bin" --out "$data/out" \
        --batch "$batch" --seq 1024 --steps 30 --eval-every 0 --sample-every 0 --save-every 0 "$@"; then
        { echo; echo "== 124M B=$batch T=1024 $*"; tail -n 30 "$log"; } >>"$results"
        python3 - "$data/out/log.jsonl" <<'PYTHON' | tee -a "$results"
import json, statistics, sys
speeds = [json.loads(line)["tokens_per_second"] for line in open(sys.argv[1])][5:]
print(f"median of {len(speeds)} steps: {statistics.median(speeds):.0f} tokens/s")
PYTHON
    fi
}
for batch in 4 16 64; do step $batch; done
step 64 --optimizer muon
step 16 --dtype fp32
step 16 --dtype fp32 --matmul tf32
step 64 --recompute block
step 64 --profile
echo "measured: $results"
echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ]

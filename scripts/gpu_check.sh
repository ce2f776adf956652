#!/usr/bin/env bash
# All checks for a machine with an NVIDIA GPU:
#   scripts/gpu_check.sh [build|test|program|steps|ranks|ladders|sanitize]...     (default: all)
# build: train_gpt2cu for this GPU, and the kernels' ladders. test: the tests of the kernels and of the model. program: whole
# runs, which must repeat and resume to the bit and agree with the CPU's. steps: times steps of GPT-2 124M, also in
# PyTorch. ranks: trains by several processes, compares with one, and times them. ladders: times every kernel from naive to
# production, with the measured peak.
# sanitize: NVIDIA's compute-sanitizer on the tests of the model and of each layer. Measurements go to
# dev/results/GPU-PART.txt. Missing tools are skipped with the reason, and failures do not stop the rest. Ends with
# "N passed, N failed[, N skipped]".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset MAKEFLAGS MAKELEVEL # from make check-gpu: builds here should use all cores

PATH=$PATH:/usr/local/cuda/bin
smi() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1; }
gpu=$(smi name)
log=$(mktemp) data=$(mktemp -d)
trap 'rm -rf "$log" "$data"' EXIT
source scripts/checks.sh
counted() { # a command that ends with "N passed, N failed[, N skipped]"
    "$@" | tee "$log"
    if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
        skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
    else
        failed=$((failed + 1))
        echo "FAIL $*"
    fi
}
results() { # part: starts its results file
    results=dev/results/${gpu//[^A-Za-z0-9.]/-}-$1.txt
    {
        echo "$gpu, driver $(smi driver_version), $(nvcc --version 2>/dev/null | grep -o 'release [0-9.]*')"
        nvidia-smi --query-gpu=clocks.max.sm,clocks.max.mem,power.limit --format=csv
        git log -1 --format='%h %s' 2>/dev/null
    } >"$results"
}

part_build() {
    if ! command -v nvcc >/dev/null; then
        skip build 'no nvcc here (CUDA Toolkit 12 or 13)'
        return
    fi
    check 'set-up' scripts/setup.sh test
    check 'train_gpt2cu builds' make train_gpt2cu
    check 'train_gpt2 builds' make train_gpt2
    if [ -z "$gpu" ]; then
        skip 'the ladders' 'no GPU here; make ladders builds them for the emulator'
        return
    fi
    local ladders=(dev/*_cuda)
    check 'the ladders build' make -k "${ladders[@]/#dev/build/native/ladder}"
}

part_test() {
    local arch test
    arch=$(smi compute_cap | tr -d .)
    if scripts/setup.sh test >"$log" 2>&1 || ! compgen -G 'build/cuda/cuda_*_test' >/dev/null; then
        counted scripts/check_cuda.sh ${arch:+sm_$arch}
    elif [ -z "$gpu" ]; then
        skip test 'GoogleTest is missing, and no GPU here'
    else # built elsewhere
        for test in build/cuda/cuda_*_test; do check "$(basename "$test") as it was built" timeout 600 "$test"; done
    fi
}

part_ladders() {
    if [ -z "$gpu" ]; then
        skip ladders 'no GPU here'
        return
    fi
    results ladders
    local ladder name
    for ladder in dev/*_cuda; do
        name=$(basename "$ladder")
        if [ -x "build/native/ladder/$name" ]; then
            check "ladder of $name" timeout 300 "build/native/ladder/$name"
            { echo; echo "== $name"; cat "$log"; } >>"$results"
        else
            skip "ladder of $name" 'not built'
        fi
    done
    echo "measured: $results"
}

trained() { # name, steps, program, options: a run in $data/NAME
    local name=$1 steps=$2 program=$3
    shift 3
    check "$name: trains" timeout 300 "$program" --data data/tinyshakespeare.txt --out "$data/$name" --steps "$steps" \
        --schedule constant --warmup 4 --eval-every 20 --eval-batches 4 --sample-every 0 "$@"
}
same_model() { # two runs: the newest checkpoints' weights and optimizer states
    cmp "$data/$1/latest/model.safetensors" "$data/$2/latest/model.safetensors" &&
        cmp "$data/$1/latest/optimizer.safetensors" "$data/$2/latest/optimizer.safetensors"
}
close_losses() { # two runs, how far apart their losses may be
    python3 - "$data/$1/log.jsonl" "$data/$2/log.jsonl" "$3" <<'PYTHON'
import json, sys
a, b = ([json.loads(line)["loss"] for line in open(path)] for path in sys.argv[1:3])
apart = max(abs(x - y) for x, y in zip(a, b, strict=True))
print(f"losses are at most {apart:.6f} apart")
sys.exit(not apart <= float(sys.argv[3]))
PYTHON
}
part_program() {
    if [ -z "$gpu" ]; then
        skip 'whole runs' 'no GPU here'
        return
    elif [ ! -x train_gpt2cu ] || [ ! -x train_gpt2 ]; then
        skip 'whole runs' 'train_gpt2cu or train_gpt2 is not built'
        return
    fi
    local name prompt='ROMEO:'
    check 'data' scripts/get_data.sh tinyshakespeare vocab.bpe
    trained cpu 40 ./train_gpt2
    # 40 steps apart, by rounding that each step adds to; the losses fall from 5.5 to 2.7.
    trained fp32 40 ./train_gpt2cu --dtype fp32 && check 'fp32: losses as on the CPU' close_losses fp32 cpu 0.001
    trained tf32 40 ./train_gpt2cu --dtype fp32 --matmul tf32 && check 'tf32: losses near the CPU' close_losses tf32 cpu 0.02
    trained bf16 40 ./train_gpt2cu && check 'bf16: losses near the CPU' close_losses bf16 cpu 0.05
    for name in adamw muon shards; do
        local options=()
        case $name in
        adamw) options=(--optimizer adamw) ;;
        shards) options=(--shards 4 --batch 4) ;;
        esac
        trained "$name-once" 40 ./train_gpt2cu "${options[@]}"
        trained "$name-again" 40 ./train_gpt2cu "${options[@]}"
        check "$name: the same bits twice" same_model "$name-once" "$name-again"
        trained "$name-resumed" 20 ./train_gpt2cu "${options[@]}"
        check "$name: resumes" ./train_gpt2cu --resume --out "$data/$name-resumed" --steps 40
        check "$name: resumed as unbroken" same_model "$name-once" "$name-resumed"
    done
    trained block 40 ./train_gpt2cu --recompute block
    check '--recompute block: the same bits' same_model muon-once block
    trained profiled 40 ./train_gpt2cu --profile
    check '--profile: the same bits' same_model muon-once profiled
    for name in train_gpt2 train_gpt2cu; do
        ./$name eval --from "$data/muon-once" --data data/tinyshakespeare.txt 2>&1 | tail -n 1
        timeout 60 ./$name generate --from "$data/muon-once" --prompt $prompt --tokens 100 --temperature 0 2>&1
        echo
    done
    check 'eight samples' ./train_gpt2cu generate --from "$data/muon-once" --prompt $prompt --tokens 300 --samples 8
}

declare -A speed # tokens/s by batch size
step() { # batch, options
    local batch=$1 what="124M B=$1 T=1024" summary
    shift
    [ $# = 0 ] || what+=" $*"
    rm -rf "$data/out"
    check "$what" timeout 300 ./train_gpt2cu --model d12 --tokenizer gpt2 --data "$data/text.bin" --out "$data/out" \
        --batch "$batch" --seq 1024 --steps 30 --eval-every 0 --sample-every 0 --save-every 0 "$@" || return
    summary=$(python3 - "$data/out/log.jsonl" "$log" <<'PYTHON'
import json, re, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
speed = statistics.median([line["tokens_per_second"] for line in lines if line["split"] == "train"][5:])
L, C, V, T = 12, 768, 50257, 1024  # forward and backward: 6 for each weight, and attention's scores
flops = 6 * (L * 12 * C * C + V * C) + 6 * L * C * T
# The program's share of peak is for its mean speed, which includes the preparations of the first steps.
shares = re.findall(r"(\d+) tokens/s  (\d+) % of peak", open(sys.argv[2]).read())
mean, share = map(float, max(shares, key=lambda s: float(s[1]), default=(0, 0)))
mfu = f"{share * speed / mean:.0f} % of peak" if share else "unknown"
print(f"{speed:.0f} tokens/s, {speed * flops / 1e12:.0f} TFLOP/s, MFU {mfu}, loss {lines[-1]['loss']:.2f}")
PYTHON
    )
    [ $# != 0 ] || speed[$batch]=${summary%% *}
    { echo; echo "== $what"; tail -n 40 "$log"; echo "median of a step: $summary"; } >>"$results"
    echo "     $summary"
}
pytorch() { # batches: the same steps in PyTorch
    local python found='' status batch theirs
    for python in .venv/bin/python python3; do
        "$python" -c 'import numpy, torch; assert torch.cuda.is_available()' 2>/dev/null && found=$python && break
    done
    if [ -z "$found" ] && scripts/setup.sh pytorch >"$log" 2>&1; then found=.venv/bin/python; fi
    if [ -z "$found" ]; then
        skip PyTorch "none here, and scripts/setup.sh pytorch could not install it: $(tail -n 1 "$log")"
        return
    fi
    { echo; echo '== PyTorch: bf16 autocast, torch.compile, flash attention, fused AdamW'; } >>"$results"
    timeout 1200 "$found" scripts/bench_pytorch_gpu.py "$data/text.bin" "$@" 2>"$log" | tee "$data/pytorch"
    status=${PIPESTATUS[0]}
    cat "$data/pytorch" >>"$results"
    case $status in
    0) passed=$((passed + 1)) ;;
    3) skip PyTorch "$(tail -n 1 "$data/pytorch")" ;;
    *)
        failed=$((failed + 1))
        echo "FAIL PyTorch, exit status $status"
        tail -n 30 "$log"
        ;;
    esac
    for batch; do
        theirs=$(sed -n "s|^B=$batch: \([0-9]*\) tokens/s.*|\1|p" "$data/pytorch")
        [ -z "$theirs" ] || [ -z "${speed[$batch]:-}" ] ||
            awk -v b="$batch" -v ours="${speed[$batch]}" -v theirs="$theirs" \
                'BEGIN { printf "B=%d: train_gpt2cu %d tokens/s, PyTorch %d: %.2f times as fast\n", b, ours, theirs, ours / theirs }'
    done | tee -a "$results"
}
part_steps() {
    if [ -z "$gpu" ]; then
        skip 'steps' 'no GPU here'
        return
    elif [ ! -x train_gpt2cu ]; then
        skip 'steps' 'train_gpt2cu is not built'
        return
    fi
    check 'data' scripts/get_data.sh tinyshakespeare vocab.bpe
    check 'tokens' ./train_gpt2cu tokenize data/tinyshakespeare.txt "$data/text.bin" --tokenizer gpt2 || return
    results steps
    local batch
    for batch in 4 8 16 32 64; do step $batch; done
    pytorch 4 16 64
    # 18,865 steps of 524,288 tokens: on 8 A100s in 300 ms each (llm.c's scripts/run_gpt2_124M.sh), on 8 H100s in 45
    # minutes (README of KellerJordan/modded-nanogpt), which is 140 ms.
    echo 'llm.c, as published, for a GPU of 8: 467k tokens/s on H100s (524,288 in 140 ms), 218k on A100s (300 ms)' |
        tee -a "$results"
    step 64 --profile
    step 64 --optimizer muon
    step 64 --recompute block
    step 16 --dtype fp32
    step 16 --dtype fp32 --matmul tf32
    echo "measured: $results"
}

numbers() { grep -oE '"(step|loss|grad_norm)":[^,]*' "$1/log.jsonl"; } # of the log, without times
same_run() { # two runs: the same log too
    same_model "$1" "$2" && diff <(numbers "$data/$1") <(numbers "$data/$2")
}
part_ranks() {
    local gpus ranks=1 optimizer launcher several small
    gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
    while ((2 * ranks <= gpus && ranks < 8)); do ranks=$((2 * ranks)); done
    if [ "$gpus" = 0 ]; then
        skip ranks 'no GPU here'
        return
    elif [ ! -x train_gpt2cu ] || ! command -v mpirun >/dev/null; then
        skip ranks 'no train_gpt2cu or no mpirun here'
        return
    fi
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
    several=(mpirun --bind-to none -n $ranks)
    if [ "$ranks" = 1 ]; then # two ranks on one GPU, as if on two machines: NCCL sends through sockets
        # shellcheck disable=SC2016
        ranks=2 several=(mpirun --bind-to none -n 2 env NCCL_SOCKET_IFNAME=lo sh -c
            'NCCL_HOSTID=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} exec "$0" "$@"')
    fi
    check 'data' scripts/get_data.sh tinyshakespeare vocab.bpe
    check 'tokens' ./train_gpt2cu tokenize data/tinyshakespeare.txt "$data/text.bin" --tokenizer gpt2 || return
    results ranks
    small=(--tokenizer gpt2 --data "$data/text.bin" --layers 4 --heads 6 --channels 384 --context 256 --seq 256 --batch 4
        --total-batch $((ranks * 2048)) --shards $ranks --steps 6 --save-every 6 --eval-every 3 --sample-every 0)
    for optimizer in adamw muon; do
        rm -rf "$data/one" "$data/several"
        check "$optimizer by one process" timeout 300 ./train_gpt2cu "${small[@]}" --optimizer $optimizer --out "$data/one"
        check "$optimizer by $ranks" timeout 300 "${several[@]}" ./train_gpt2cu "${small[@]}" --optimizer $optimizer \
            --out "$data/several"
        check "$optimizer by $ranks: the bits of one" same_run one several
    done
    if [ "$gpus" = 1 ]; then
        skip 'speed of several ranks' 'one GPU here'
        return
    fi
    for launcher in '' "mpirun --bind-to none -n $ranks"; do
        rm -rf "$data/out"
        # shellcheck disable=SC2086
        check "124M B=32 T=1024 ${launcher:-one process}" timeout 300 $launcher ./train_gpt2cu --model d12 --tokenizer gpt2 \
            --data "$data/text.bin" --out "$data/out" --batch 32 --seq 1024 --total-batch $((ranks * 32768)) --shards $ranks \
            --steps 20 --eval-every 0 --sample-every 0 --save-every 0 --profile || continue
        { echo; echo "== ${launcher:-one process}"; tail -n 40 "$log"; } >>"$results"
        grep -oE '[0-9]+ tokens/s' "$log" | tail -n 1 | sed 's/^/     /'
    done
    echo "measured: $results"
}

part_sanitize() {
    local tool name test
    if [ -z "$gpu" ]; then
        skip compute-sanitizer 'no GPU here'
        return
    elif ! command -v compute-sanitizer >/dev/null; then
        skip compute-sanitizer 'not installed'
        return
    fi
    for name in model attention matmul layernorm classifier embedding update muon; do
        test=build/cuda/cuda_${name}_test
        for tool in memcheck racecheck synccheck initcheck; do
            if [[ $tool = initcheck && $name =~ model|matmul|classifier|muon ]]; then
                skip "compute-sanitizer $tool on the tests of $name" "it takes what cuBLASLt's kernels write for uninitialized"
            elif [ -x "$test" ]; then # nvjet: cuBLASLt's kernels, in which racecheck finds hazards
                check "compute-sanitizer $tool on the tests of $name" timeout 900 compute-sanitizer --tool $tool \
                    --kernel-name-exclude kernel_substring=nvjet --error-exitcode 1 "$test"
            else
                skip "compute-sanitizer $tool on the tests of $name" "$test is not built"
            fi
        done
    done
}

[ $# != 0 ] || set -- build test program steps ranks ladders sanitize
for part; do
    if ! declare -F "part_$part" >/dev/null; then
        echo "gpu_check.sh: part: found '$part', expected build, test, program, steps, ranks, ladders or sanitize" >&2
        exit 2
    fi
done
for part; do
    echo "== $part"
    part_"$part"
done
print_counts

#!/usr/bin/env bash
# Runs the program under ThreadSanitizer. GCC's OpenMP runtime does not support it and would give hundreds of false
# reports. LLVM's runtime replaces it (it has GCC's entry points) and reports OpenMP's ordering to the sanitizer through
# Archer.
# Needs Debian's libomp-dev. Ends with "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program=$PWD/${TRAIN_GPT2:?make check-threads} text=$PWD/README.md passed=0 failed=0
lib=$(ls -d /usr/lib/llvm-*/lib/libarcher.so 2>/dev/null | sort -V | tail -n 1)
[ -n "$lib" ] || { echo "check_threads: found no libarcher.so, expected LLVM's OpenMP; apt-get install libomp-dev"; exit 2; }
export OMP_TOOL_LIBRARIES=$lib OMP_NUM_THREADS=3 TSAN_OPTIONS='exitcode=66 ignore_noninstrumented_modules=1'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2

check() {  # name, expected exit status, command
    local status=0
    LD_PRELOAD=${lib%archer.so}omp.so.5 timeout 300 "${@:3}" >output 2>&1 || status=$?
    if [ $status = "$2" ]; then
        passed=$((passed + 1)) && echo "ok   $1"
    else
        failed=$((failed + 1)) && tail -n 60 output && echo "FAIL $1: exit status $status, expected $2"
    fi
}

# Checks that a race is found, and that nothing is reported without one.
printf '%s\n' 'int main(int argc, char**) {' 'long sum = 0, all[3] = {};' '#pragma omp parallel for' \
    'for (int i = 0; i < 3; i++) { all[i] = i; if (argc > 1) sum += i; }' 'return all[1] == 1 && sum >= 0 ? 0 : 1; }' >race.cpp
g++ -O1 -g -fopenmp -fsanitize=thread race.cpp -o race || exit 2
check 'a program without a race' 0 ./race
check 'a program with one' 66 ./race race

small=(--data "$text" --layers 2 --heads 2 --channels 32 --context 32 --batch 4 --seq 32 --sample-tokens 4 --sample-every 2)
check 'training' 0 "$program" train "${small[@]}" --steps 4 --eval-every 2 --save-every 2 --out adamw
check 'resumed' 0 "$program" train --resume --out adamw --steps 6
check 'training with Muon, accumulated, recomputed' 0 \
    "$program" train "${small[@]}" --steps 3 --optimizer muon --total-batch 256 --recompute block --out muon
check 'a signal to save, and one to stop' 143 bash -c '"$@" & pid=$!
    for signal in USR1 TERM; do sleep 10; kill -$signal $pid; done; wait $pid' bash \
    "$program" train "${small[@]}" --steps 1000000 --out signals
check 'tokenize' 0 "$program" tokenize "$text" text.bin
check 'eval' 0 "$program" eval --from adamw --data "$text"
check 'generate' 0 "$program" generate --from adamw --prompt ab --tokens 9
echo "$passed passed, $failed failed"
[ $failed = 0 ]

#!/usr/bin/env bash
# Fuzzes the readers of dev/fuzz with libFuzzer, one on each core, and prints the coverage of each.
#   FUZZ_RUNS=1000000 TARGET=safetensors scripts/fuzz.sh     (all targets by default)
# The corpus is kept in build/fuzz/corpus for the next run; an input that fails goes to build/fuzz/failed. FUZZ_RUNS=0 only
# runs the corpus. FAST=1 is for the build that counts functions (Makefile), which uses the same corpus.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

runs=${FUZZ_RUNS:-10000000} program=${FUZZER:-build/native/fuzz/readers}
targets=${TARGET:-$(TARGET='?' $program 2>&1 | sed 's/.*one of//')}
# Readers make many small allocations: no stack traces for them, and a short quarantine, as inputs are short.
export OMP_NUM_THREADS=1 ASAN_OPTIONS=quarantine_size_mb=1:malloc_context_size=0:detect_leaks=0
more=()
[ -z "${FAST:-}" ] || more=(-keep_seed=1 -entropic=0)
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$logs"' EXIT

fuzz() {  # target: prints a line on it, after what it printed if it failed
    local target=$1 log=$logs/$1 known=() executions coverage
    mkdir -p build/fuzz/corpus/"$target" build/fuzz/failed
    [ ! -d dev/fuzz/found/"$target" ] || known=(dev/fuzz/found/"$target")
    if TARGET=$target SEEDS=build/fuzz/corpus/$target $program -seed=1 -runs="$runs" -max_len=512 -timeout=1 "${more[@]}" \
        -malloc_limit_mb=8 -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix=build/fuzz/failed/"$target"- \
        build/fuzz/corpus/"$target" "${known[@]}" >"$log" 2>&1; then
        executions=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
        coverage=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1)
        echo "ok   $target: $executions executions, ${coverage#cov: } edges covered"
        touch "$logs/$target.passed"
    else
        grep -vE '^#[0-9]+[[:space:]]' "$log" | tail -n 40
        echo "FAIL $target"
    fi
}

for target in $targets; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc 2>/dev/null || echo 1)" ]; do wait -n; done
    { fuzz "$target" >"$logs/$target.line" 2>&1; cat "$logs/$target.line"; } &
done
wait

total=$(wc -w <<<"$targets") passed=$(compgen -G "$logs/*.passed" | wc -l)
echo "$passed passed, $((total - passed)) failed"
[ "$passed" = "$total" ]

#!/usr/bin/env bash
# Runs test programs, shows what the failing ones print, and ends with "N passed, N failed".
#   scripts/run_tests.sh PROGRAM...
# The tests of a GoogleTest program (its name ends in _test) are counted from its JSON report; any other program ends with
# such a line itself. A program that crashes, hangs, fails without a failing test, or has no tests, is one failure.
# SKIPPED: programs that this compiler cannot build, each counted as one skipped test.
# As many programs run at once as there are cores, since most keep little more than one core busy. Their threads sleep while
# they wait: one that spins keeps another program's thread off the core, and a test takes five times as long. Those that
# measure, of the machine and of dev/'s tools, run one after another.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
: >"$work/counts"
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT

gtest_counts() {  # prints: passed failed skipped
    python3 - "$1" <<'PYTHON'
import collections, json, sys
results = collections.Counter()
for suite in json.load(open(sys.argv[1]))["testsuites"]:
    for test in suite["testsuite"]:
        ran = test["status"] == "RUN" and test["result"] != "SKIPPED"
        results["failed" if "failures" in test else "passed" if ran else "skipped"] += 1
print(results["passed"], results["failed"], results["skipped"])
PYTHON
}

run() {  # program: prints a line on it, and adds its counts to $work/counts
    local program=$1 started=$EPOCHREALTIME passed=0 failed=0 skipped=0 why='' arguments=() own status counts
    own=$(mktemp -d "$work/XXXXXX")
    [[ $program != *_test ]] || arguments=("--gtest_output=json:$own/report.json")
    { timeout "${TEST_TIMEOUT:-900}" "$program" "${arguments[@]}" >"$own/output" 2>&1 </dev/null; } 2>/dev/null
    status=$?
    if [ $status = 2 ] && grep -q 'this CPU lacks' "$own/output"; then
        skipped=1 why="skipped: $(head -n 1 "$own/output")"
    else
        counts=
        if [[ $program = *_test ]]; then
            [ ! -s "$own/report.json" ] || counts=$(gtest_counts "$own/report.json" 2>/dev/null)
        else
            counts=$(tail -n 1 "$own/output" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\1 \2 \4/p')
        fi
        read -r passed failed skipped <<<"${counts:-0 0 0}"
        skipped=${skipped:-0}
        if [ "$failed" = 0 ] && [ $status != 0 ]; then
            failed=1 why="exit status $status"
            [ $status != 124 ] || why="ran for more than ${TEST_TIMEOUT:-900} s"
        elif [ "$failed" != 0 ] && [ $status = 0 ]; then
            why='failed, but its exit status is 0'
        elif [ $((passed + failed + skipped)) = 0 ]; then
            failed=1 why='it ran no test'
        fi
    fi
    awk -v name="${program#build/}" -v p="$passed" -v f="$failed" -v s="$skipped" -v why="$why" \
        -v start="$started" -v end="$EPOCHREALTIME" 'BEGIN {
            printf "%-4s %-40s %4d passed, %d failed%s  %.1f s%s\n", f ? "FAIL" : p ? "ok" : "skip", name, p, f,
                   s ? ", " s " skipped" : "", end - start, why == "" ? "" : "  (" why ")" }'
    # without the tests that passed, so that a test that crashed is the last one shown
    [ "$failed" = 0 ] || sed -e '/^\[ RUN /{' -e N -e '/\n\[ *OK /d' -e '}' "$own/output" | sed 's/^/    /'
    echo "$passed $failed $skipped" >>"$work/counts"
}

together=() alone=()
for program; do
    if [[ $program = */@(device|dev)/*_test || $program != *_test ]]; then alone+=("$program"); else together+=("$program"); fi
done
for i in "${!together[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc 2>/dev/null || echo 1)" ]; do wait -n; done
    { OMP_WAIT_POLICY=passive run "${together[i]}" >"$work/$i.log"; cat "$work/$i.log"; } &
done
wait
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}  # as in the program (device/cpu/openmp_spin.h)
for program in "${alone[@]}"; do run "$program"; done

not_built=0
for program in ${SKIPPED:-}; do
    printf 'skip %-40s not built: the CUDA emulator needs g++\n' "${program#build/}"
    echo '0 0 1' >>"$work/counts"
    not_built=$((not_built + 1))
done

total_passed=0 total_failed=0 total_skipped=0 programs=0
while read -r passed failed skipped; do
    total_passed=$((total_passed + passed)) total_failed=$((total_failed + failed)) total_skipped=$((total_skipped + skipped))
    programs=$((programs + 1))
done <"$work/counts"
[ $programs = $(($# + not_built)) ] || { echo "FAIL: of $(($# + not_built)) programs $programs were counted"; total_failed=$((total_failed + 1)); }
skips=
[ $total_skipped = 0 ] || skips=", $total_skipped skipped"
echo "$total_passed passed, $total_failed failed$skips"
[ $total_failed = 0 ] && [ $total_passed != 0 ]

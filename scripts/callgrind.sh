#!/usr/bin/env bash
# Counts the instructions of a fixed small training step, one with AdamW and one with Muon, on one thread, and compares
# with the number in dev/results/callgrind.txt: 3 % more fails. --update writes the number.
#   scripts/callgrind.sh [--update]
# It uses the x86-64-v3 build, because valgrind does not support AVX-512. With another compiler, which makes other code,
# the count is only printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=g++ kind=
[[ $("${CXX:-g++}" --version) != *clang* ]] || name=clang++ kind=-clang # the Makefile keeps clang's objects apart
margin=3 file=dev/results/callgrind.txt program=build/x86-64-v3$kind/callgrind_step
[ $# = 0 ] || [ "$*" = --update ] || { echo "callgrind.sh: found '$*', expected --update or nothing" >&2; exit 2; }
skip() { echo "skipped: $1"; echo '0 passed, 0 failed, 1 skipped'; exit 0; }
grep -qs 'avx2.*fma\|fma.*avx2' /proc/cpuinfo || skip "this CPU cannot run the x86-64-v3 build"
command -v valgrind >/dev/null || { echo 'callgrind.sh: needs valgrind: scripts/setup.sh ci' >&2; exit 1; }

make --no-print-directory ARCH=x86-64-v3 SANITIZE= "$program"
log=$(OMP_NUM_THREADS=1 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
    --toggle-collect='counted_step*' "$program" 2>&1) || { echo "$log" >&2; exit 1; }
count=$(sed -n 's/.*Collected *: *\([0-9]*\).*/\1/p' <<<"$log")
[ -n "$count" ] || { echo "callgrind.sh: no count in:" "$log" >&2; exit 1; }
compiler="$name $("${CXX:-g++}" -dumpfullversion -dumpversion)"

if [ $# = 1 ]; then
    printf '%s instructions\n%s\n' "$count" "$compiler" >"$file"
    echo "wrote $file: $count instructions, $compiler"
    exit
fi
expected=$(sed -n '1s/ .*//p' "$file") with=$(sed -n 2p "$file")
change=$(awk -v a="$count" -v b="$expected" 'BEGIN { printf "%+.2f", 100 * (a / b - 1) }')
echo "$count instructions, $change % from $expected ($file)"
[ "$with" = "$compiler" ] || skip "built with $compiler; the number is of $with"
if awk "BEGIN { exit !($change > $margin) }"; then
    echo "a step takes more than $margin % more instructions than it did; where this is meant: scripts/callgrind.sh --update"
    echo '0 passed, 1 failed'
    exit 1
fi
awk "BEGIN { exit !($change < -$margin) }" && echo "better by more than $margin %: scripts/callgrind.sh --update keeps it so"
echo '1 passed, 0 failed'

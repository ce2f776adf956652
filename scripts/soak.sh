#!/usr/bin/env bash
# Trains for a long time, with frequent evaluations, samples and saves, and checks that memory and file handles do not grow
# after the warm-up, the first fifth of the time.
#   scripts/soak.sh [SECONDS [OPTION…]]     default: an hour, the tiny model; the options are train_gpt2's
# The exit status is 1 if memory grew by a MiB or more, or if file handles grew. Tokens per second, and CPU seconds per
# step, are only reported: they also depend on the machine's other work (CPU seconds less so with OMP_NUM_THREADS=1, as
# waiting threads spin). So at the end a new run is started for a minute beside the old one: other work slows both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-3600}
shift || true
[[ $seconds =~ ^[1-9][0-9]{0,8}$ ]] || { echo "soak.sh: SECONDS: found '$seconds', expected a whole number above 0" >&2; exit 2; }
work=$(mktemp -d)
trap 'kill -KILL "${pid:-}" "${new:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
train() {  # name, options
    exec "${TRAIN_GPT2:-./train_gpt2}" --out "$work/$1" --steps 1000000000 --schedule constant --eval-every 250 \
        --sample-every 500 --save-every 250 --keep 2 "${@:2}" >"$work/$1.output" 2>&1
}
train run "$@" &
pid=$!

end=$((SECONDS + seconds))
while [ $SECONDS -lt $end ]; do
    sleep $((seconds / 240 + 1))
    if ! kill -0 $pid 2>/dev/null; then
        tail -n 20 "$work/run.output"
        echo "soak: the program ended by itself"
        exit 1
    fi
    handles=("/proc/$pid/fd/"*)
    step=$(tail -qn 1 "$work/run/log.jsonl" 2>/dev/null | sed 's/.*"step":\([0-9]*\).*/\1/')
    # utime and stime, after the name in parentheses
    ticks=$(sed 's/.*) //' "/proc/$pid/stat" | awk '{ print $12 + $13 }')
    echo "$((seconds - end + SECONDS)) $(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status") ${#handles[@]} $ticks ${step:-0}" >>"$work/samples"
done
cp "$work/run/log.jsonl" "$work/before"
train new "$@" &
new=$!
sleep 60
kill -TERM $pid $new
status=0
wait $pid || status=$?
wait $new || true

python3 - "$work" "$seconds" "$status" <<'PYTHON'
import json, os, statistics, sys
work, seconds, status = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def read_log(name):
    log = [json.loads(line) for line in open(f"{work}/{name}")]
    return [e for e in log if e["split"] == "train"], [e for e in log if e["split"] == "val"]

samples = [tuple(map(int, line.split())) for line in open(f"{work}/samples")]
train, val = read_log("before")

def fifth(n, of):
    return [e for e in of if n * seconds / 5 <= e[0] < (n + 1) * seconds / 5]

# The maximum of memory over a fifth of the time, as it varies with every save and report, and the median of handles, as
# files that are open during a save are not a leak.
rss = [max(s[1] for s in fifth(n, samples)) for n in range(5)]
handles = [statistics.median_low(s[2] for s in fifth(n, samples)) for n in range(5)]
speed = [statistics.median(v for _, v in fifth(n, [(e["seconds"], e["tokens_per_second"]) for e in train])) for n in range(5)]

def processor(part):  # seconds per step, including evaluations, samples and saves
    (_, _, _, before, first), (_, _, _, after, last) = part[0], part[-1]
    return (after - before) / os.sysconf("SC_CLK_TCK") / max(last - first, 1)

steps = [processor(fifth(n, samples)) for n in range(5)]
growth = max(rss[2:]) - rss[1]
print(f"{seconds} s, {len(train)} steps, {len(val)} evaluations, exit status {status}")
print("most resident memory in each fifth, KiB:", *rss)
print("median file handles in each fifth:", *handles)
print("median tokens/s in each fifth:", *(f"{s:.0f}" for s in speed))
print("processor ms for a step in each fifth:", *(f"{1000 * s:.2f}" for s in steps))
print(f"after warm-up: memory {growth:+d} KiB, file handles {max(handles[2:]) - handles[1]:+d}, "
      f"tokens/s {speed[4] / speed[1] - 1:+.1%}, processor time for a step {steps[4] / steps[1] - 1:+.1%}")
old, new = (statistics.median(e["tokens_per_second"] for e in log) for log in
            (read_log("run/log.jsonl")[0][len(train):], read_log("new/log.jsonl")[0][10:]))
print(f"beside a new run: median tokens/s {old:.0f}, the new one's {new:.0f}: {old / new - 1:+.1%}")
sys.exit(not (growth < 1024 and max(handles[2:]) <= handles[1] and status == 143))
PYTHON

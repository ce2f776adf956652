#!/usr/bin/env python3
"""Draws the pictures of dev/layernorm/README.md from measured numbers:

    dev/layernorm/speed.svg, trade.svg   from dev/layernorm/results.csv (build/native/layernorm_measure)
    dev/norm_experiment/loss.svg         from dev/norm_experiment/results.csv (build/native/norm_experiment)
"""

import collections
import csv
import math
import os
import statistics
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

DEV = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dev")
COLORS = ["#1f5fa8", "#e8964a", "#4f9d5d", "#a33d5e", "#7a6fb0"]
NORMS = {"pre": "LayerNorm before", "post": "LayerNorm after", "rms": "RMSNorm before", "none": "none"}


def read(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def save(figure, path):
    figure.tight_layout()
    # No date and no random ids, so that the same numbers give the same file.
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path)


def speed(rows, path):
    copy = {r["channels"]: float(r["GB/s"]) for r in rows if r["work"] == "copy"}
    figure, axes = plt.subplots(figsize=(7, 3.6))
    works = [w for w in dict.fromkeys(r["work"] for r in rows) if w != "copy" and not w.startswith("keep")]
    for work, color in zip(works, COLORS):
        mine = [r for r in rows if r["work"] == work]
        axes.plot([int(r["channels"]) for r in mine], [100 * float(r["GB/s"]) / copy[r["channels"]] for r in mine],
                  "o-", color=color, label=work)
    axes.set_xscale("log", base=2)
    ticks = sorted(map(int, copy))
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_ylim(0, 120)
    axes.set(xlabel="values in a row", ylabel="% of a streaming copy's bytes a second")
    axes.grid(color="#d0d0d0")
    axes.legend(fontsize=8)
    save(figure, path)


def trade(rows, path):
    figure, axes = plt.subplots(figsize=(7, 2.4))
    kept = ["norm", "statistics", "nothing"]
    for i, what in enumerate(kept):
        forward, backward = (
            next(r for r in rows if r["work"] == f"keep {what} {way}") for way in ("forward", "backward")
        )
        first, second = float(forward["ms"]), float(backward["ms"])
        axes.barh(i, first, color=COLORS[0], label="forward" if i == 0 else None)
        axes.barh(i, second, left=first, color=COLORS[1], label="backward" if i == 0 else None)
        axes.text(first + second, i, f"  {first + second:.2f} ms, {float(forward['MiB kept']):.2f} MiB kept", va="center")
    axes.set_yticks(range(3), [f"keep {what}" for what in kept])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.65 * axes.get_xlim()[1])  # room for text and legend
    axes.set_xlabel(f"ms for {forward['rows']} rows of {forward['channels']}")
    axes.legend(fontsize=8, loc="lower right")
    save(figure, path)


def loss(rows, path):
    last = max(int(r["step"]) for r in rows)
    rates = sorted({r["lr"] for r in rows}, key=float)
    figure, (by_rate, by_step) = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    top = 4.2
    shown = lambda x: x if math.isfinite(x) and x < top else top
    for (norm, label), color in zip(NORMS.items(), COLORS):
        final = {lr: [float(r["validation"]) for r in rows if (r["norm"], r["lr"]) == (norm, lr) and int(r["step"]) == last]
                 for lr in rates}
        means = [shown(statistics.mean(final[lr])) for lr in rates]
        by_rate.plot(rates, means, "-", color=color, label=label)
        for lr in rates:
            failed = [x for x in final[lr] if shown(x) == top]
            by_rate.plot([lr] * len(final[lr]), [shown(x) for x in final[lr]], "x" if failed else "o", color=color, ms=5)
        best = rates[means.index(min(means))]
        curve = collections.defaultdict(list)
        for r in rows:
            if (r["norm"], r["lr"]) == (norm, best):
                curve[int(r["step"])].append(float(r["validation"]))
        by_step.plot(list(curve), [statistics.mean(v) for v in curve.values()], "o-", ms=3, color=color,
                     label=f"{label}, {best}")
    by_rate.set(xlabel=f"learning rate (x: not finite)", ylabel="validation loss, nats per byte",
                title=f"after {last} steps, each of 3 seeds", ylim=(2.3, top + 0.1))
    by_step.set(xlabel="step", title="each at its best rate, mean of the seeds")
    for axes in (by_rate, by_step):
        axes.grid(color="#d0d0d0")
        axes.legend(fontsize=8)
    save(figure, path)


def main():
    if len(sys.argv) > 1:
        print(f"plot_layernorm.py: found {sys.argv[1]!r}, expected no arguments", file=sys.stderr)
        sys.exit(2)
    matplotlib.rcParams["svg.hashsalt"] = "layernorm"
    try:
        measured = read(os.path.join(DEV, "layernorm/results.csv"))
        speed(measured, os.path.join(DEV, "layernorm/speed.svg"))
        trade(measured, os.path.join(DEV, "layernorm/trade.svg"))
        loss(read(os.path.join(DEV, "norm_experiment/results.csv")), os.path.join(DEV, "norm_experiment/loss.svg"))
    except (OSError, KeyError, StopIteration, ValueError) as e:
        print(f"plot_layernorm.py: {type(e).__name__}: {e}; make the CSV files anew as {__doc__.splitlines()[2].strip()}",
              file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

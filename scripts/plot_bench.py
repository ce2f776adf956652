#!/usr/bin/env python3
"""Draws each dev/results/*.csv of make bench as an .svg beside it: every row's share of the machine's peak, for this
program and PyTorch.

    plot_bench.py DIR|FILE.csv...
"""

import csv
import glob
import os
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

OURS, PYTORCH, GRID = "#1f5fa8", "#e8964a", "#d0d0d0"
FAST = 1.0  # a rate above the streaming copy's (a row that fits the caches) is cut off here


def read(path):
    """Returns the comment line about the machine, and the rows as dictionaries."""
    with open(path, newline="") as f:
        about = f.readline().lstrip("# ").strip()
        return about, list(csv.DictReader(f))


def best_pytorch(row):
    times = [float(t) for t in (row["PyTorch eager seconds"], row["PyTorch compile seconds"]) if t]
    return min(times) if times else None


def time_text(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def panel(axes, title, rows, strip):
    """Draws two bars per row: this program's, and PyTorch's below it, each followed by its time."""
    for i, row in enumerate(rows):
        ours, theirs, share = float(row["seconds"]), best_pytorch(row), float(row["share of peak"])
        height = 0.4 if theirs else 0.6
        bars = [(i - 0.2 if theirs else i, share, ours, OURS)]
        if theirs:
            bars.append((i + 0.2, share * ours / theirs, theirs, PYTORCH))
        for y, value, seconds, color in bars:
            axes.barh(y, min(value, FAST), height=height, color=color)
            over = f" ({value:.0%})" if value > FAST else ""
            inside = value > 0.8
            axes.text(min(value, FAST) + (-0.01 if inside else 0.01), y, time_text(seconds) + over, va="center",
                      ha="right" if inside else "left", fontsize=6.5, color="white" if inside else "#333333")
    axes.set_yticks(range(len(rows)), [row["work"].removeprefix(strip) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"], fontsize=8)
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw(path):
    about, rows = read(path)
    matmul = [r for r in rows if r["work"].startswith("matmul")]
    steps = [r for r in rows if r["work"].startswith("step")]
    bound = [r for r in rows if r not in matmul and r not in steps]
    flops, memory = [r for r in bound if r["unit"] == "GFLOP/s"], [r for r in bound if r["unit"] != "GFLOP/s"]
    columns = [
        [("Matmuls (rows × outputs × inputs): share of the FMA peak", matmul, "matmul ")],
        [
            ("Whole training steps: share of the FMA peak", steps, "step "),
            ("Layers bound by arithmetic: share of the FMA peak", flops, ""),
            ("Layers bound by memory: share of a streaming copy's bandwidth", memory, ""),
        ],
    ]
    columns = [[p for p in panels if p[1]] for panels in columns]
    columns = [panels for panels in columns if panels]
    margin = 4  # rows' worth of space for a panel's title and axis
    tall = max(sum(len(p[1]) + margin for p in panels) for panels in columns)
    figure = plt.figure(figsize=(8.5 * len(columns), 0.25 * tall + 0.9))
    top, row = 1 - 0.75 / figure.get_figheight(), 0.25 / figure.get_figheight()
    for c, panels in enumerate(columns):
        y = top
        for title, part, strip in panels:
            height = len(part) * row
            y -= 1.5 * row + height
            panel(figure.add_axes([(c + 0.33) / len(columns), y, 0.63 / len(columns), height]), title, part, strip)
            y -= (margin - 1.5) * row
    figure.text(0.01, 1 - 0.25 / figure.get_figheight(), f"make bench on {about}", fontsize=12, va="center")
    handles = [plt.Rectangle((0, 0), 1, 1, color=c) for c in (OURS, PYTORCH)]
    names = ["train_gpt2", "PyTorch at its best (the faster of eager and compile, tcmalloc preloaded)"]
    shown = 2 if any(best_pytorch(r) for r in rows) else 1
    figure.legend(handles[:shown], names[:shown], loc="upper left", ncols=2, fontsize=9, frameon=False,
                  bbox_to_anchor=(0.005, 1 - 0.35 / figure.get_figheight()))
    out = os.path.splitext(path)[0] + ".svg"
    figure.savefig(out, metadata={"Date": None, "Creator": None})
    print(f"wrote {out}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    plt.rcParams["svg.hashsalt"] = "bench"  # the same numbers, the same file
    for argument in sys.argv[1:]:
        found = glob.glob(os.path.join(argument, "*.csv")) if os.path.isdir(argument) else [argument]
        for path in sorted(found):
            if not path.endswith("-threads.csv"):
                draw(path)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draws the pictures of dev/matmul/README.md and dev/attention/README.md:

    dev/matmul/rungs.svg, dev/attention/rungs.svg    from results.csv beside them (dev/build/matmul --csv)
    dev/matmul/tile.svg, dev/attention/online.svg    diagrams, without measured numbers
"""

import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from plot_layernorm import read, save

TIGHT = {"bbox_inches": "tight", "pad_inches": 0.15}
CORES = 2  # of the machine on which results.csv was measured
BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#e8964a", "#4f9d5d", "#d9d9d9"
PALE_BLUE, PALE_ORANGE, PALE_GREEN = "#c9dcf0", "#fae0c8", "#cfe8d4"


def rungs(ladder):
    """Each rung as a bar of its share of the peak, and each pass as a panel."""
    rows = read(f"{ladder}/results.csv")
    passes = list(dict.fromkeys(r["pass"] for r in rows))
    figure, panels = plt.subplots(1, len(passes), figsize=(9.5, 2.9), sharex=True)
    for axes, name in zip(panels, passes):
        mine = [r for r in rows if r["pass"] == name]
        shares = [100 * float(r["share"]) for r in mine]
        colors = [ORANGE if r["name"] == "production" else BLUE for r in mine]
        axes.barh(range(len(mine)), shares, color=colors, height=0.7)
        for i, r in enumerate(mine):
            axes.text(shares[i] + 1.5, i, f"{1e3 * float(r['seconds']):.1f} ms", va="center", fontsize=9,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
        axes.axvline(100 / CORES, color="#555555", linestyle="--", linewidth=1, zorder=0)
        axes.axvline(100, color="#555555", linewidth=1, zorder=0)
        axes.text(100 / CORES, -0.75, "one core", ha="center", fontsize=8.5, color="#555555")
        axes.text(100, -0.75, "both cores", ha="center", fontsize=8.5, color="#555555")
        axes.set_yticks(range(len(mine)), [r["name"] for r in mine])
        axes.set_ylim(len(mine) - 0.5, -0.6)
        axes.set_xlim(0, 118)
        axes.set_xticks(range(0, 101, 25))
        axes.set_title(f"{name}, {mine[0]['shape'].replace('x', ' × ')}", fontsize=10.5, pad=18)
        axes.set_xlabel("% of the machine's FMA peak")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout(w_pad=2)
    save(figure, f"{ladder}/rungs.svg", f"{ladder}/results.csv", **TIGHT)


def canvas(width, height):
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set_xlim(0, 10 * width)
    axes.set_ylim(10 * height, 0)
    axes.set_aspect("equal")
    axes.axis("off")
    return figure, axes


def box(axes, x, y, width, height, color="white", edge="#444444", line=1.0, **more):
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=edge, linewidth=line, **more))


def note(axes, x, y, text, **more):
    axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 9.5, **more})


def tile():
    """The three matrices with the parts that one tile uses, and the registers during one step of its loop."""
    figure, axes = canvas(9.6, 5.9)
    # the matrices
    note(axes, 13, 2, "inp (N, C)", fontsize=11, weight="bold")
    box(axes, 3, 10, 20, 18)
    box(axes, 3, 16, 20, 3, PALE_BLUE)
    box(axes, 11, 16, 1.2, 3, BLUE)
    note(axes, 13, 13, "6 rows", color=BLUE)
    note(axes, 29, 19, "×", fontsize=18)
    note(axes, 46, 2, "weightᵀ (C, OC)", fontsize=11, weight="bold")
    box(axes, 34, 5, 24, 24)
    for panel in range(3):
        box(axes, 43, 5 + 8 * panel, 6, 8, PALE_ORANGE)
    box(axes, 43, 15.4, 6, 1.2, ORANGE)
    note(axes, 46, 31, "16 columns", color="#b3621a")
    note(axes, 50, 16, "row k", color="#b3621a", ha="left")
    note(axes, 38.4, 9, "a panel:\n256 rows,\ncopied", color="#b3621a", fontsize=8.5)
    note(axes, 11.6, 21, "column k", color=BLUE)
    note(axes, 64, 19, "=", fontsize=18)
    note(axes, 81, 2, "out (N, OC)", fontsize=11, weight="bold")
    box(axes, 69, 10, 24, 18)
    box(axes, 78, 16, 6, 3, GREEN)
    note(axes, 81, 13, "one tile: 6 × 16 sums", color="#2f7a40")
    # the registers
    note(axes, 3, 36, "One step k of the tile's loop, in the 16 vector registers of a core with AVX2 (8 floats each):",
         ha="left", fontsize=10.5, weight="bold")
    for v in range(2):
        box(axes, 40 + 15 * v, 40, 14, 2.6, ORANGE)
        note(axes, 47 + 15 * v, 41.3, f"w: columns {8 * v} … {8 * v + 7}", fontsize=7.8)
    for r in range(6):
        box(axes, 24, 43.6 + 2.5 * r, 14, 2.1, PALE_BLUE if r else BLUE)
        note(axes, 31, 44.65 + 2.5 * r, f"x = inp[row {r}][k]", fontsize=8.5, color="black" if r else "white")
        for v in range(2):
            box(axes, 40 + 15 * v, 43.6 + 2.5 * r, 14, 2.1, GREEN if not r else PALE_GREEN)
            note(axes, 47 + 15 * v, 44.65 + 2.5 * r, "sum += x · w", fontsize=8.5, color="white" if not r else "black")
    note(axes, 72, 41.3, "2 loads", ha="left", color="#b3621a")
    note(axes, 72, 46, "12 registers of sums,\n12 FMAs per step", ha="left", color="#2f7a40")
    note(axes, 72, 51.5, "8 loads for 12 FMAs,\n15 of 16 registers", ha="left")
    note(axes, 12.5, 46, "6 loads, each\ncopied to 8 lanes", color=BLUE)
    note(axes, 12.5, 52.5, "one register,\nrow after row", color=BLUE)
    save(figure, "matmul/tile.svg", **TIGHT)


def online():
    """The scores of a head as tiles, and what each query keeps while it goes from tile to tile."""
    figure, axes = canvas(9.6, 5.1)
    tiles, size, left, top, row = 8, 4.4, 9, 9, 5
    for i in range(tiles):
        for j in range(tiles):
            x, y = left + j * size, top + i * size
            if j > i:
                box(axes, x, y, size, size, "#f4f4f4", "#c4c4c4", 0.6, hatch="///")
            elif i < row or (i == row and j < 2):
                box(axes, x, y, size, size, PALE_GREEN, "white", 1)
            elif (i, j) == (row, 2):
                box(axes, x, y, size, size, ORANGE, "white", 1)
            else:
                box(axes, x, y, size, size, "white", "#c4c4c4", 0.6)
    width = tiles * size
    axes.plot([left, left + width], [top, top + width], color="#444444", linewidth=1)
    note(axes, left + width / 2, 2.5, "T × T scores of a head", fontsize=11, weight="bold")
    note(axes, left + width / 2, 6.5, "keys  →")
    note(axes, left - 3, top + width / 2, "queries  →", rotation=270)
    note(axes, left + 0.68 * width, top + 0.22 * width, "above the diagonal:\nnever computed", fontsize=9.5,
         bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})
    axes.annotate("", (left + 4 * size, top + (row + 0.5) * size), (left + 3 * size + 0.3, top + (row + 0.5) * size),
                  arrowprops={"arrowstyle": "->", "color": "#444444"})
    y = top + width + 3.2
    for x, color, label in [(left - 4, PALE_GREEN, "done, forgotten"), (left + 15, ORANGE, "in L1 now"),
                            (left + 27.5, "white", "still to come")]:
        box(axes, x, y - 1, 2, 2, color, "#888888", 0.8)
        note(axes, x + 3, y, label, ha="left", fontsize=9)
    # the state
    x = 51
    note(axes, x, 2.5, "What a query keeps", fontsize=11, weight="bold", ha="left")
    lines = [("m", "the largest score so far", 1), ("l", "the sum of exp(score − m)", 1),
             ("o", "the sum of exp(score − m) · v,  a vector of hs", 6)]
    for i, (name, what, wide) in enumerate(lines):
        box(axes, x, 6 + 3.6 * i, 2.6 * wide, 2.6, PALE_BLUE)
        note(axes, x + 1.3 * wide, 7.3 + 3.6 * i, name, style="italic", fontsize=11)
        note(axes, x + 2.6 * wide + 1, 7.3 + 3.6 * i, what, ha="left")
    note(axes, x, 20, "For each tile of keys", fontsize=11, weight="bold", ha="left")
    steps = ["s = q · k / √hs", "m′ = max(m, largest s)", "f = exp(m − m′)", "p = exp(s − m′)", "l ← l · f + Σ p",
             "o ← o · f + Σ p · v", "m ← m′"]
    why = ["a matmul tile", "", "the old sums are rescaled", "", "", "another matmul tile", ""]
    for i, (step, reason) in enumerate(zip(steps, why)):
        note(axes, x + 1, 23.6 + 2.9 * i, step, ha="left", fontsize=11)
        note(axes, x + 22, 23.6 + 2.9 * i, reason, ha="left", color="#b3621a")
    note(axes, x, 45.2, "After the last tile", fontsize=11, weight="bold", ha="left")
    note(axes, x + 1, 48.8, "out = o / l          logsumexp = m + log l", ha="left", fontsize=11)
    save(figure, "attention/online.svg", **TIGHT)


def main():
    if len(sys.argv) > 1:
        print(f"plot_ladders.py: {sys.argv[1]}: this script takes no arguments", file=sys.stderr)
        return 2
    matplotlib.rcParams["svg.hashsalt"] = "ladders"
    tile()
    online()
    try:
        rungs("matmul")
        rungs("attention")
    except (OSError, KeyError, ValueError) as e:
        print(f"plot_ladders.py: {type(e).__name__}: {e}; measure again, as dev/matmul/README.md describes",
              file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

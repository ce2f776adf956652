#!/usr/bin/env python3
"""Draws the pictures of dev/matmul/README.md and dev/attention/README.md:

    dev/matmul/rungs.svg, dev/attention/rungs.svg    from avx2.csv and avx512.csv beside them (dev/build/matmul --csv)
    dev/matmul/tile.svg, dev/attention/online.svg    diagrams, without measured numbers
"""

import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

import ladder_tables
from plot_layernorm import WIDTH, read, save

TIGHT = {"bbox_inches": "tight", "pad_inches": 0.15}
CORES = 2  # of the machines on which these were measured
BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#e8964a", "#4f9d5d", "#d9d9d9"
PALE_BLUE, PALE_ORANGE, PALE_GREEN = "#c9dcf0", "#fae0c8", "#cfe8d4"


def rungs(ladder, sizes):
    """Each rung as bars of its share of the peak, one for each kind of vectors, and each pass as a panel."""
    sources = {kind: f"{ladder}/{name}" for kind, name in ladder_tables.RESULTS.items()}
    rows = {kind: read(name) for kind, name in sources.items()}
    names = {}  # pass: rungs
    for r in next(iter(rows.values())):
        names.setdefault(r["pass"], []).append(r["name"])
    heights, height = [len(mine) for mine in names.values()], 0.4
    figure, panels = plt.subplots(len(names), 1, figsize=(WIDTH, 0.5 * sum(heights) + 2.1), height_ratios=heights,
                                  sharex=True)
    for axes, (name, mine) in zip(panels, names.items()):
        for k, kind in enumerate(rows):
            bars = [r for r in rows[kind] if r["pass"] == name]
            for i, r in enumerate(bars):
                share, y = 100 * float(r["share"]), i + (k - 0.5) * height
                axes.barh(y, share, color=ORANGE if r["name"] == "production" else BLUE, alpha=1 - 0.5 * k, height=height,
                          label=kind if not i else None)
                axes.text(share + 1.5, y, f"{1e3 * float(r['seconds']):.1f} ms", va="center", fontsize=9,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
        axes.axvline(100 / CORES, color="#555555", linestyle="--", linewidth=1, zorder=0)
        axes.axvline(100, color="#555555", linewidth=1, zorder=0)
        axes.text(100 / CORES, -0.75, "one core", ha="center", color="#555555")
        axes.text(100, -0.75, "both cores", ha="center", color="#555555")
        axes.set_yticks(range(len(mine)), mine)
        axes.set_ylim(len(mine) - 0.5, -0.6)
        axes.set_xlim(0, 118)
        axes.set_xticks(range(0, 101, 25))
        axes.set_title(f"{name}, {sizes} = {bars[0]['shape'].replace('x', ' × ')}", fontsize=11, pad=18)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(loc="center right", bbox_to_anchor=(1, 0.6))
    panels[-1].set_xlabel("% of the machine's FMA peak")
    figure.tight_layout(h_pad=1)
    save(figure, f"{ladder}/rungs.svg", *sources.values(), **TIGHT)


def canvas(width, height):
    """Axes without ticks in which one unit is a tenth of an inch, and y goes down."""
    figure = plt.figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 10 * width), ylim=(10 * height, 0))
    axes.axis("off")
    return figure, axes


def box(axes, x, y, width, height, color="white", edge="#444444", line=1.0, **more):
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=edge, linewidth=line, **more))


def note(axes, x, y, text, **more):
    axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 10, **more})


def tile():
    """The three matrices with the parts that one tile uses, and the registers during one step of its loop."""
    figure, axes = canvas(WIDTH, 6.9)
    blue, orange, green = {"color": BLUE}, {"color": "#b3621a"}, {"color": "#2f7a40"}
    # the matrices
    note(axes, 7.5, 2, "inp (N, C)", weight="bold")
    box(axes, 0.5, 10, 14, 16)
    box(axes, 0.5, 16, 14, 3, PALE_BLUE)
    box(axes, 5.5, 16, 1.2, 3, BLUE)
    note(axes, 7.5, 13, "6 rows", **blue)
    note(axes, 6.1, 21.5, "column k", **blue)
    note(axes, 17.5, 18, "×", fontsize=18)
    note(axes, 28.5, 2, "weightᵀ (C, OC)", weight="bold")
    box(axes, 20.5, 5, 16, 24)
    for panel in range(3):
        box(axes, 24, 5 + 8 * panel, 4, 8, PALE_ORANGE)
    box(axes, 24, 15.4, 4, 1.2, ORANGE)
    note(axes, 26, 31.2, "16 columns", **orange)
    note(axes, 28.6, 16, "row k", ha="left", **orange)
    note(axes, 28.6, 8.9, "a panel:\n256 rows,\ncopied", ha="left", linespacing=1.1, **orange)
    note(axes, 39.5, 18, "=", fontsize=18)
    note(axes, 48.5, 2, "out (N, OC)", weight="bold")
    box(axes, 42.5, 10, 13, 16)
    box(axes, 47, 16, 4, 3, GREEN)
    note(axes, 49, 13.5, "one tile:\n6 × 16 sums", linespacing=1.1, **green)
    # the registers
    note(axes, 0.5, 37.5, "One step k of the tile's loop, in the 16 vector registers\n"
         "of a core with AVX2 (8 floats each):", ha="left", weight="bold")
    note(axes, 8.5, 43.3, "2 loads of weights →", **orange)
    for v in range(2):
        box(axes, 18.5 + 18.8 * v, 41.9, 18, 2.8, ORANGE)
        note(axes, 27.5 + 18.8 * v, 43.3, f"w: columns {8 * v} … {8 * v + 7}")
    for r in range(6):
        y = 45.4 + 2.8 * r
        box(axes, 0.5, y, 17, 2.4, BLUE if not r else PALE_BLUE)
        note(axes, 9, y + 1.2, f"x = inp[row {r}][k]", color="black" if r else "white")
        for v in range(2):
            box(axes, 18.5 + 18.8 * v, y, 18, 2.4, GREEN if not r else PALE_GREEN)
            note(axes, 27.5 + 18.8 * v, y + 1.2, "sum += x · w", color="black" if r else "white")
    note(axes, 9, 66.2, "6 loads, each\ncopied to 8 lanes;\none register,\nrow after row", **blue)
    note(axes, 36.9, 64.4, "12 registers of sums, 12 FMAs per step", **green)
    note(axes, 36.9, 67.4, "8 loads for 12 FMAs, 15 of 16 registers")
    save(figure, "matmul/tile.svg", **TIGHT)


def online():
    """The scores of a head as tiles, and what each query keeps while it goes from tile to tile."""
    figure, axes = canvas(WIDTH, 9.3)
    tiles, size, left, top, row = 8, 4.4, 11, 8, 5
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
    note(axes, left + width / 2, 2, "T × T scores of a head", fontsize=11, weight="bold")
    note(axes, left + width / 2, 6, "keys  →")
    note(axes, left - 3, top + width / 2, "queries  →", rotation=270)
    note(axes, left + 0.68 * width, top + 0.22 * width, "above the diagonal:\nnever computed",
         bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})
    axes.annotate("", (left + 4 * size, top + (row + 0.5) * size), (left + 3 * size + 0.3, top + (row + 0.5) * size),
                  arrowprops={"arrowstyle": "->", "color": "#444444"})
    y = top + width + 3.2
    for x, color, label in [(3, PALE_GREEN, "done, forgotten"), (22, ORANGE, "in L1 now"),
                            (36, "white", "still to come")]:
        box(axes, x, y - 1, 2, 2, color, "#888888", 0.8)
        note(axes, x + 3, y, label, ha="left")
    # the state
    x, y = 3, 52.5
    note(axes, x, y, "What a query keeps", fontsize=11, weight="bold", ha="left")
    lines = [("m", "the largest score so far", 1), ("l", "the sum of exp(score − m)", 1),
             ("o", "the sum of exp(score − m) · v, hs floats", 6)]
    for i, (name, what, wide) in enumerate(lines):
        box(axes, x, y + 2.6 + 3.6 * i, 2.6 * wide, 2.6, PALE_BLUE)
        note(axes, x + 1.3 * wide, y + 3.9 + 3.6 * i, name, style="italic", fontsize=11)
        note(axes, x + 2.6 * wide + 1, y + 3.9 + 3.6 * i, what, ha="left")
    note(axes, x, y + 15.2, "For each tile of keys", fontsize=11, weight="bold", ha="left")
    steps = ["s = q · k / √hs", "m′ = max(m, largest s)", "f = exp(m − m′)", "p = exp(s − m′)", "l ← l · f + Σ p",
             "o ← o · f + Σ p · v", "m ← m′"]
    why = ["a matmul tile", "", "the old sums are rescaled", "", "", "another matmul tile", ""]
    for i, (step, reason) in enumerate(zip(steps, why)):
        note(axes, x, y + 18.4 + 2.8 * i, step, ha="left")
        note(axes, x + 21, y + 18.4 + 2.8 * i, reason, ha="left", color="#b3621a")
    note(axes, x, y + 38.4, "After the last tile:  out = o / l,  logsumexp = m + log l", weight="bold", ha="left")
    save(figure, "attention/online.svg", **TIGHT)


def main():
    if len(sys.argv) > 1:
        print(f"plot_ladders.py: {sys.argv[1]}: this script takes no arguments", file=sys.stderr)
        return 2
    matplotlib.rcParams["svg.hashsalt"] = "ladders"
    tile()
    online()
    try:
        rungs("matmul", "N × C × OC")
        rungs("attention", "B × T × NH × hs")
    except (OSError, KeyError, ValueError) as e:
        print(f"plot_ladders.py: {type(e).__name__}: {e}; measure again, as dev/matmul/README.md describes",
              file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Draws the pictures of dev/layernorm/README.md:

    dev/layernorm/speed.svg, trade.svg      from dev/layernorm/results.csv (build/native/layernorm_measure)
    dev/layernorm/ladder.svg                from dev/layernorm/ladder.csv (times printed by dev/build/layernorm)
    dev/norm_experiment/loss.svg            from dev/norm_experiment/results.csv (build/native/norm_experiment)
    dev/layernorm/axes.svg, paths.svg, projection.svg    diagrams, without measured numbers
"""

import collections
import csv
import hashlib
import io
import math
import os
import statistics
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

DEV = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dev")
RESULTS, LADDER, LOSSES = "layernorm/results.csv", "layernorm/ladder.csv", "norm_experiment/results.csv"

# Okabe and Ito's colors, which color-blind readers can tell apart too.
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#b0508a"
GRAY, PALE, TEXT = "#8a8a8a", "#e4e4e4", "#1f2328"
WIDTH = 5.6  # inches: on a phone, which shows a picture at about 60 % of that, its text can still be read
# Pictures have a background of their own. On dark pages light and dark are exchanged, and the hues stay.
STYLE = '<style type="text/css">'
DARK = "@media (prefers-color-scheme: dark) {svg {filter: invert(0.93) hue-rotate(180deg)}}"
# Line, marker and whether the marker is filled: curves that lie on each other stay visible.
SOLID, DASHED, DOTTED, DASH_DOT = ("-", "o", True), ("--", "s", False), (":", "^", True), ("-.", "D", False)
NORMS = {  # name in the CSV: label, color, style
    "pre": ("LayerNorm before", BLUE, SOLID),
    "post": ("LayerNorm after", ORANGE, DOTTED),
    "rms": ("RMSNorm before", GREEN, DASHED),
    "none": ("none", PURPLE, DASH_DOT),
}


def read(name):
    with open(os.path.join(DEV, name), newline="") as f:
        return list(csv.DictReader(f))


def save(figure, name, *sources, **more):
    """Writes a picture that depends on its numbers only: it has no date and no random ids."""
    origins = []
    for source in sources:
        with open(os.path.join(DEV, source), "rb") as f:
            origins.append(f"dev/{source} sha256:{hashlib.sha256(f.read()).hexdigest()}")
    # scripts/check_chapter.py finds pictures that are older than their numbers by this.
    metadata = {"Date": None, **({"Description": ", ".join(origins)} if origins else {})}
    path = os.path.join(DEV, name)
    svg = io.StringIO()
    figure.savefig(svg, metadata=metadata, facecolor="white", **more)
    plt.close(figure)
    with open(path, "w", encoding="utf-8") as f:
        f.write(svg.getvalue().replace(STYLE, STYLE + DARK, 1))
    print(path)


def curve(axes, x, y, color, style, label, size=6.0):
    line, marker, filled = style
    shape = {"ms": size, "mfc": color} if filled else {"ms": 1.4 * size, "mfc": "none"}
    axes.plot(x, y, line, marker=marker, color=color, label=label, **shape)


def diagram(width, height):
    """Axes without ticks in which one unit is one inch."""
    figure = plt.figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def axes_of_the_norms(name):
    """A grid of rows × features twice: LayerNorm's row, and BatchNorm's column."""
    rows, columns, cell = 5, 6, 0.28
    figure, axes = diagram(WIDTH, 3.55)
    for left, title, highlighted in ((0.42, "LayerNorm", BLUE), (3.12, "BatchNorm", ORANGE)):
        by_row, bottom = title == "LayerNorm", 1.05
        width, height = columns * cell, rows * cell
        inside = (lambda r, c: r == 1) if by_row else (lambda r, c: c == 3)
        for r in range(rows):
            for c in range(columns):
                axes.add_patch(Rectangle((left + c * cell, bottom + (rows - 1 - r) * cell), cell, cell, lw=1, ec=GRAY,
                                         fc=highlighted if inside(r, c) else "white", alpha=1))
        axes.text(left + width / 2, 3.36, title, ha="center", va="center", fontsize=14, weight="bold",
                  color=highlighted)
        axes.text(left + width / 2, 3.08, "normalizes a row over its features" if by_row else
                  "normalizes a feature over the rows", ha="center", va="center", fontsize=10)
        axes.annotate("", (left + width, bottom + height + 0.12), (left, bottom + height + 0.12),
                      arrowprops={"arrowstyle": "->", "color": TEXT})
        axes.text(left + width / 2, bottom + height + 0.25, "C features", ha="center", va="center", fontsize=10)
        axes.annotate("", (left - 0.12, bottom), (left - 0.12, bottom + height),
                      arrowprops={"arrowstyle": "->", "color": TEXT})
        axes.text(left - 0.28, bottom + height / 2, "N rows (B·T)", ha="center", va="center", fontsize=10,
                  rotation=90)
        for i in range(rows if by_row else columns):
            mine = i == (1 if by_row else 3)
            at = ((left + width + 0.32, bottom + (rows - 0.5 - i) * cell) if by_row else
                  (left + (i + 0.5) * cell, bottom - 0.26))
            axes.plot(*at, "o", ms=9, color=highlighted if mine else PALE, mec=GRAY)
            start = (left + width, at[1]) if by_row else (at[0], bottom)
            axes.annotate("", (at[0] - 0.1, at[1]) if by_row else (at[0], at[1] + 0.1), start,
                          arrowprops={"arrowstyle": "->", "color": highlighted if mine else GRAY})
        many, whole = ("N", "that row alone") if by_row else ("C", "the whole batch")
        axes.text(left + width + 0.08, bottom - 0.3, f"{many} means,\n{many} rstds", ha="left", va="center",
                  fontsize=10)
        axes.text(left + width / 2, 0.38, f"A row's result depends\non {whole}.", ha="center", va="center", fontsize=10)
    save(figure, name)


def box(axes, x, y, text, color=TEXT):
    axes.text(x, y, text, ha="center", va="center", fontsize=12, color=color, zorder=3,
              bbox={"boxstyle": "round,pad=0.45", "fc": "white", "ec": color, "lw": 1.6})


def arrow(axes, start, end, color, gaps=(0, 0), style="-"):
    """An arrow; gaps are the points that it leaves free at either end."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2, "linestyle": style,
                                              "shrinkA": gaps[0], "shrinkB": gaps[1], "mutation_scale": 16})


def paths(name):
    """The three paths from x to norm, with the derivative of each arrow, and the three terms of dx."""
    figure, axes = diagram(WIDTH, 4.75)
    x, norm, mean, variance, rstd = (0.4, 3.15), (5.15, 3.15), (2.8, 4.4), (1.75, 1.8), (3.75, 1.8)
    arrow(axes, x, norm, BLUE, (16, 28))
    arrow(axes, x, mean, GREEN, (17, 31))
    arrow(axes, mean, norm, GREEN, (31, 30))
    arrow(axes, x, variance, ORANGE, (18, 32))
    arrow(axes, variance, rstd, ORANGE, (40, 24))
    arrow(axes, rstd, norm, ORANGE, (24, 32))
    arrow(axes, mean, variance, GRAY, (18, 20), "--")
    for at, text, color in ((x, "x", TEXT), (norm, "norm", TEXT), (mean, "mean", GREEN), (variance, "variance", ORANGE),
                            (rstd, "rstd", ORANGE)):
        box(axes, *at, text, color)
    for at, text, color in (((3.75, 3.32), "directly: rstd", BLUE), ((1.35, 4.05), "1/C", GREEN),
                            ((4.35, 4.05), "−rstd", GREEN),
                            ((0.62, 2.25), "2 (x − mean)/C", ORANGE), ((2.78, 2.05), "−rstd³/2", ORANGE),
                            ((4.95, 2.25), "x − mean", ORANGE), ((1.75, 2.7), "adds 0", GRAY)):
        axes.text(*at, text, ha="center", va="center", fontsize=10.5, color=color, zorder=4,
                  bbox={"boxstyle": "square,pad=0.12", "fc": "white", "ec": "none"})
    axes.text(0.15, 1.2, "An arrow carries its derivative. The gradient goes against the\n"
              "arrows and adds the three paths:", ha="left", va="center", fontsize=10.5)
    for start, y, text, color in (("dx  =", 0.78, "dnorm · rstd", BLUE),
                                  ("+", 0.5, "dvariance · 2 (x − mean)/C", ORANGE), ("+", 0.22, "dmean/C", GREEN)):
        axes.text(0.78, y, start, ha="right", va="center", fontsize=12, weight="bold")
        axes.text(0.9, y, text, ha="left", va="center", fontsize=12, color=color, weight="bold")
    save(figure, name)


def worked_row():
    """The row in numbers of the chapter: dnorm and its three orthogonal components, and rstd."""
    x, dnorm = (0.0, 8.0, 5.0, 4.0), (-1.985, 2.349, -0.234, -0.387)
    mean = statistics.mean(x)
    rstd = 1 / math.sqrt(statistics.pvariance(x) + 1e-5)
    norm = [(v - mean) * rstd for v in x]
    shift = [statistics.mean(dnorm)] * len(x)
    scale = [v * statistics.mean(d * n for d, n in zip(dnorm, norm)) for v in norm]
    return dnorm, shift, scale, [d - a - b for d, a, b in zip(dnorm, shift, scale)], rstd


def length(row):
    return math.sqrt(sum(v * v for v in row))


def projection(name):
    """The components of the worked row's dnorm: as arrows, true to scale, and value by value."""
    dnorm, shift, scale, rest, rstd = worked_row()
    figure = plt.figure(figsize=(WIDTH, 5.6))
    # One unit has the same length on both axes. The component along (1,…,1) is perpendicular to them.
    axes = figure.add_axes((0.02, 0.62, 0.96, 0.36), xlim=(-0.2, 4.95), ylim=(-0.78, 1.1), aspect="equal")
    axes.axis("off")
    along, up = length(scale), length(rest)
    for end, color in (((along, up), TEXT), ((along, 0), ORANGE)):
        axes.annotate("", end, (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2.2, "shrinkA": 0,
                                                   "shrinkB": 0, "mutation_scale": 17})
    axes.annotate("", (along, up), (along, 0), arrowprops={"arrowstyle": "-|>", "color": BLUE, "lw": 2.2, "shrinkA": 0,
                                                           "shrinkB": 0, "mutation_scale": 17})
    axes.plot([along - 0.12, along - 0.12, along], [0, 0.12, 0.12], color=GRAY, lw=1)
    axes.plot(0, 0, "o", ms=8, mfc="white", mec=GREEN, mew=1.8)
    axes.plot(0, 0, "o", ms=2.5, color=GREEN)
    axes.text(1.3, 0.5, f"dnorm, length {length(dnorm):.2f}", ha="center", fontsize=11, color=TEXT,
              rotation=math.degrees(math.atan2(up, along)), rotation_mode="anchor")
    axes.text(along / 2, -0.09, f"along norm, {along:.2f}:\nonly scales the row; removed", ha="center", va="top",
              fontsize=10.5, color=ORANGE)
    axes.text(along + 0.1, up / 2, f"what remains, {up:.2f}:\ntimes rstd it is dx", ha="left", va="center",
              fontsize=10.5, color=BLUE)
    axes.text(-0.1, -0.56, f"along (1, …, 1), {length(shift):.2f}, perpendicular to the page: only shifts; removed",
              ha="left", va="top", fontsize=10, color=GREEN)
    parts = (("dnorm", dnorm, TEXT), ("along (1, …, 1)", shift, GREEN), ("along norm", scale, ORANGE),
             ("what remains", rest, BLUE))
    for i, (title, row, color) in enumerate(parts):
        left, bottom = 0.05 + 0.5 * (i % 2), 0.33 - 0.3 * (i // 2)
        bars = figure.add_axes((left, bottom, 0.41, 0.23), ylim=(-3.3, 3.3))
        bars.bar(range(4), row, color=color, width=0.75)
        bars.axhline(0, color=TEXT, lw=0.8)
        bars.axis("off")
        for c, v in enumerate(row):
            up_or_down, va = (1, "bottom") if v >= 0 else (-1, "top")
            bars.text(c, v + 0.18 * up_or_down, f"{v:.2f}".replace("-", "−"), ha="center", va=va, fontsize=10)
        bars.set_title(title, fontsize=10.5, color=color)
        if i > 0:
            figure.text(left - 0.03, bottom + 0.115, "=" if i == 1 else "+", fontsize=15, ha="center", va="center")
    save(figure, name)


def ladder(name):
    """The rungs' times as bars, forward and backward on one scale, a bar for each kind of vectors."""
    rows, height = read(LADDER), 0.4
    kinds = (("AVX2", 1.0), ("AVX-512", 0.5))  # and how opaque
    figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 7.6), sharex=True, layout="constrained")
    for axes, what, color in zip(panels, ("forward", "backward"), (BLUE, ORANGE)):
        mine = [r for r in rows if r["pass"] == what]
        gains = []
        for k, (kind, opaque) in enumerate(kinds):
            times = [float(r[f"{kind} ms"]) for r in mine]
            places = [i + (k - 0.5) * height for i in range(len(mine))]
            axes.barh(places, times, color=color, alpha=opaque, height=height, label=kind)
            for y, t in zip(places, times):
                axes.text(t, y, f" {t:.2f} ms", va="center", fontsize=9)
            gains.append(f"{times[0] / times[-1]:.1f}")
        axes.set_yticks(range(len(mine)), [r["name"] for r in mine])
        axes.invert_yaxis()
        axes.set_title(f"{what}: {' and '.join(gains)} × as fast in the end", fontsize=11, color=color)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right")
    panels[1].set_xlabel("ms")
    panels[0].set_xlim(0, 1.2 * max(float(r["AVX2 ms"]) for r in rows))
    save(figure, name, LADDER)


def speed(name):
    rows = read(RESULTS)
    copy = {r["channels"]: float(r["GB/s"]) for r in rows if r["work"] == "copy"}
    widths = sorted(copy, key=int)
    figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 6.2), layout="constrained")
    for axes, title, curves in (
        (panels[0], "forward", (("layernorm forward", "LayerNorm", BLUE, SOLID),
                                ("residual + layernorm forward", "residual + LayerNorm", GREEN, DOTTED),
                                ("rmsnorm forward", "RMSNorm", ORANGE, DASHED))),
        (panels[1], "backward", (("layernorm backward", "LayerNorm", BLUE, SOLID),
                                 ("rmsnorm backward", "RMSNorm", ORANGE, DASHED)))):
        axes.axhline(100, color=GRAY, lw=1.2)
        axes.text(int(widths[-1]), 100.6, "the copy", ha="right", va="bottom", color="#606060")
        for work, label, color, style in curves:
            found = {r["channels"]: float(r["GB/s"]) for r in rows if r["work"] == work}
            curve(axes, list(map(int, widths)), [100 * found[w] / copy[w] for w in widths], color, style, label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(map(int, widths)), widths)
        axes.minorticks_off()
        axes.set(title=title, ylabel="% of a streaming copy", ylim=(70, 110))
        axes.grid(color=PALE)
        axes.set_axisbelow(True)
        axes.legend(loc="lower left")
    panels[1].set_xlabel("values per row")
    save(figure, name, RESULTS)


def trade(name):
    rows = read(RESULTS)
    figure, axes = plt.subplots(figsize=(WIDTH, 2.5), layout="constrained")
    labels = {"norm": "norm", "statistics": "mean and rstd", "nothing": "nothing"}
    for i, saved in enumerate(labels):
        forward, backward = (
            next(r for r in rows if r["work"] == f"keep {saved} {way}") for way in ("forward", "backward")
        )
        first, second = float(forward["ms"]), float(backward["ms"])
        axes.barh(i, first, color=BLUE, height=0.65, label="forward" if i == 0 else None)
        axes.barh(i, second, left=first, color=ORANGE, height=0.65, label="backward" if i == 0 else None)
        for t, left in ((first, 0), (second, first)):
            axes.text(left + t / 2, i, f"{t:.2f}", ha="center", va="center", color="white", weight="bold")
        mib = float(forward["MiB kept"])
        axes.text(first + second, i, f"  {first + second:.2f} ms\n  {f'{mib:.2f}' if mib else 0} MiB", va="center")
    axes.set_yticks(range(3), labels.values())
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * axes.get_xlim()[1])  # room for the text
    axes.set_ylabel("what is saved")
    axes.set_xlabel(f"ms for {forward['rows']} rows of {forward['channels']} values")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    save(figure, name, RESULTS)


def loss(name):
    rows = read(LOSSES)
    last = max(int(r["step"]) for r in rows)
    rates = sorted({r["lr"] for r in rows}, key=float)
    figure, (by_rate, by_step) = plt.subplots(2, 1, figsize=(WIDTH, 8), layout="constrained")
    top = 4.2
    shown = lambda x: x if math.isfinite(x) and x < top else top
    for i, (norm, (label, color, style)) in enumerate(NORMS.items()):
        mine = [r for r in rows if r["norm"] == norm]
        final = {lr: [float(r["validation"]) for r in mine if r["lr"] == lr and int(r["step"]) == last] for lr in rates}
        means = [shown(statistics.mean(final[lr])) for lr in rates]
        x = [float(lr) * 1.06 ** (i - 1.5) for lr in rates]  # side by side, so that no norm's seeds hide another's
        by_rate.plot(x, means, style[0], color=color)
        for at, lr in zip(x, rates):
            failed = [v for v in final[lr] if shown(v) == top]
            by_rate.plot([at] * len(final[lr]), [shown(v) for v in final[lr]], "x" if failed else style[1], color=color,
                         mfc=color if style[2] else "none", ms=6)
        curve(by_rate, [], [], color, style, label)
        best = rates[means.index(min(means))]
        at_step = collections.defaultdict(list)
        for r in mine:
            if r["lr"] == best:
                at_step[int(r["step"])].append(float(r["validation"]))
        curve(by_step, list(at_step), [statistics.mean(v) for v in at_step.values()], color, style, f"{label}, {best}",
              5)
    by_rate.set_xscale("log")
    by_rate.set_xticks([float(lr) for lr in rates], rates)
    by_rate.minorticks_off()
    by_rate.set(xlabel="learning rate (×: not finite)", title=f"after {last} steps: 3 seeds and their mean")
    by_step.set(xlabel="step", title="each at its best rate, mean of the seeds")
    for axes in (by_rate, by_step):
        axes.set(ylabel="validation loss, nats per byte", ylim=(2.3, top + 0.1))
        axes.grid(color=PALE)
        axes.set_axisbelow(True)
        axes.legend()
    save(figure, name, LOSSES)


def main():
    if len(sys.argv) > 1:
        print(f"plot_layernorm.py: found {sys.argv[1]!r}, expected no arguments", file=sys.stderr)
        sys.exit(2)
    matplotlib.rcParams["svg.hashsalt"] = "layernorm"
    matplotlib.rcParams["text.color"] = TEXT
    for pad in ("h_pad", "w_pad"):
        matplotlib.rcParams[f"figure.constrained_layout.{pad}"] = 0.1
    try:
        axes_of_the_norms("layernorm/axes.svg")
        paths("layernorm/paths.svg")
        projection("layernorm/projection.svg")
        ladder("layernorm/ladder.svg")
        speed("layernorm/speed.svg")
        trade("layernorm/trade.svg")
        loss("norm_experiment/loss.svg")
    except (OSError, KeyError, StopIteration, ValueError) as e:
        print(f"plot_layernorm.py: {type(e).__name__}: {e}; its first lines say which program writes which CSV file",
              file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

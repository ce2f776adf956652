#!/usr/bin/env python3
"""Draws dev/recipes/losses.svg from dev/recipes/results.csv: what the recipes of each text ended at, over their operations."""

import re
import statistics

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from plot_layernorm import BLUE, GRAY, GREEN, ORANGE, PURPLE, WIDTH, read, save

RESULTS = "recipes/results.csv"
KINDS = {"Muon": (BLUE, "^"), "NorMuon, 1,024 tokens": (ORANGE, "o"), "NorMuon, 2,048 or more": (GREEN, "s"),
         "NorMuon, a sample of the softmax": (PURPLE, "D")}
TEXTS = {"tinyshakespeare": "Tiny Shakespeare, 1 MB", "sotu": "State of the Union, 12 MB", "enwik8": "enwik8, 100 MB"}


def vocabulary(options):
    tokenizer = re.search(r"--tokenizer (?:super)?bpe:(\d+)", options)
    return int(tokenizer[1]) if tokenizer else 257


def kind(options):
    muon, few, many, sampled = KINDS
    if "--sampled-softmax" in options:
        return sampled
    return muon if "normuon" not in options else few if vocabulary(options) <= 1024 else many


def operations(steps, options):
    """FLOPs of a run of the preset `tiny` with these options, as Model::flops_per_token counts them."""
    words = options.split()
    given = dict(zip(words[::2], words[1::2]))
    layers, channels, context, batch = (int(given.get(f"--{name}", default)) for name, default in
                                        (("layers", 4), ("channels", 128), ("seq", 128), ("batch", 16)))
    columns = vocabulary(options)
    if "--sampled-softmax" in options:
        columns = min(columns, 1200)  # as many in a batch of 2,048 tokens, from 1,060 to 1,310
    of_token = 6 * (12 * layers * channels**2 + columns * channels) + 6 * layers * channels * context
    return steps * batch * context * of_token


def main():
    runs = {}  # (text, operations, kind): the losses of each recipe
    for row in read(RESULTS):
        place = (row["text"], operations(int(row["steps"]), row["options"]), kind(row["options"]))
        runs.setdefault(place, {}).setdefault(row["recipe"], []).append(float(row["nats_per_byte"]))
    figure, panels = plt.subplots(len(TEXTS), 1, figsize=(WIDTH, 8), sharex=True)
    for axes, (text, title) in zip(panels, TEXTS.items()):
        for (of, flops, kind_of_run), recipes in runs.items():
            if of != text:
                continue
            for losses in recipes.values():
                mean = statistics.mean(losses)
                color, marker = KINDS[kind_of_run]
                axes.plot(flops, mean, marker, color=color, markersize=5, alpha=0.8)
                if len(losses) > 1:
                    axes.plot([flops] * len(losses), losses, "_", color=GRAY, markersize=7, zorder=0)
        axes.set_xscale("log")
        axes.set_title(title, fontsize=11)
        axes.set_ylabel("nats per byte")
        axes.spines[["top", "right"]].set_visible(False)
    for label, (color, marker) in (KINDS | {"single seeds": (GRAY, "_")}).items():
        panels[0].plot([], [], marker, color=color, label=label)
    panels[0].legend(loc="upper right", frameon=False)
    panels[-1].set_xlabel("operations of the training")
    figure.tight_layout(h_pad=1)
    save(figure, "recipes/losses.svg", RESULTS)


main()

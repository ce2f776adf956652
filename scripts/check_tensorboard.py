#!/usr/bin/env python3
"""Compares the event files of ./train_gpt2 --tensorboard with log.jsonl and samples.jsonl, as TensorBoard reads them:

    of a run, and of one that was resumed from an earlier checkpoint, each step is there once, with the log's values.

Exit status: 0 if all passed, 1 if a check failed.
"""

import argparse
import glob
import json
import math
import os
import shutil
import sys
import tempfile
import time

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginEventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.text.text_plugin import text_array_to_html
from tensorboard.util import tensor_util

from checks import ROOT, Checks

EVERYTHING = {"scalars": 0, "tensors": 0}  # no values are left out
NOT_SCALARS = ("step", "split", "seconds", "skipped")


def lines_of(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def expected_scalars(out):
    """The log's values by tag, as lists of step and value."""
    values = {}
    for entry in lines_of(os.path.join(out, "log.jsonl")):
        for key, value in entry.items():
            if key not in NOT_SCALARS:
                values.setdefault(f"{entry['split']}/{key}", []).append((entry["step"], value))
    return values


def is_same(found, expected):
    """Whether these are the same steps, and the same values after rounding to fp32 (2^-24 is half its last bit)."""
    return [step for step, _ in found] == [step for step, _ in expected] and all(
        math.isclose(a, b, rel_tol=2**-23) for (_, a), (_, b) in zip(found, expected)
    )


def check_scalars(checks, name, found, expected):
    """Compares lists of events by tag with the log. Each event has a step, a time and a value."""
    checks.check(f"tags of {name}", set(found) == set(expected), f"{sorted(found)}, {sorted(expected)}")
    for tag in sorted(set(found) & set(expected)):
        values = [(step, value) for step, _, value in found[tag]]
        same = is_same(values, expected[tag])
        checks.check(f"{tag} of {name}, {len(values)} values", same, f"{values}\n{expected[tag]}")


def check_events(checks, name, out, started):
    expected = expected_scalars(out)
    scripts = EventAccumulator(out, size_guidance=EVERYTHING)
    scripts.Reload()
    found = {tag: [(e.step, e.wall_time, e.value) for e in scripts.Scalars(tag)] for tag in scripts.Tags()["scalars"]}
    check_scalars(checks, f"{name}, as scripts read it", found, expected)

    shown = PluginEventAccumulator(out, size_guidance=EVERYTHING, tensor_size_guidance={"scalars": 0, "text": 0})
    shown.Reload()
    found = {
        tag: [(e.step, e.wall_time, tensor_util.make_ndarray(e.tensor_proto).item()) for e in shown.Tensors(tag)]
        for tag in shown.Tags()["tensors"]
    }
    texts = [(step, text.decode()) for step, _, text in found.pop("sample", [])]
    check_scalars(checks, f"{name}, as TensorBoard shows it", found, expected)
    times = [at for _, at, _ in found["train/loss"]]
    in_order = times == sorted(times) and started <= times[0] <= times[-1] <= time.time()
    checks.check(f"times of {name}", in_order, times)
    samples = lines_of(os.path.join(out, "samples.jsonl"))
    lines = [(step, "\n".join(line[4:] for line in text.split("\n"))) for step, text in texts]
    wanted = [(sample["step"], sample["text"]) for sample in samples]
    checks.check(f"samples of {name}", lines == wanted, f"{lines}\n{wanted}")
    html = text_array_to_html(np.array(texts[-1][1].encode(), dtype=object), enable_markdown=True) if texts else ""
    checks.check(f"a sample of {name} is shown as it is", "<pre><code>" in html, html)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=ROOT, metavar="DIR", help="where train_gpt2 is")
    train_gpt2 = os.path.join(os.path.abspath(parser.parse_args().programs), "train_gpt2")
    checks, started = Checks(), time.time()
    with tempfile.TemporaryDirectory() as directory:
        text, out = os.path.join(directory, "text.txt"), os.path.join(directory, "run")
        with open(text, "w", encoding="utf-8") as f:
            f.write("".join(f"line {i}: the quick brown fox jumps over the lazy dog\n" for i in range(300)))
        shape = "--layers 1 --heads 2 --channels 16 --context 16 --batch 2 --seq 16".split()
        often = "--eval-every 4 --sample-every 8 --sample-tokens 20 --save-every 10 --keep 0 --steps 25".split()
        options = ["--data", text, "--out", out, "--tokenizer", "bpe:270", "--tensorboard", *shape, *often]
        resume = [train_gpt2, "train", "--resume", "--out", out]
        if checks.run("train", [train_gpt2, "train", *options]) is not None:
            check_events(checks, "a run", out, started)
        # Without its newer checkpoints the run goes back to step 10, and its newer events are no longer true.
        for newer in ("step_000020", "step_000025"):
            shutil.rmtree(os.path.join(out, newer))
        if checks.run("resume", [*resume, "--steps", "30", "--seed", "7"]) is not None:
            files = glob.glob(os.path.join(out, "events.out.tfevents.*"))
            checks.check("a new file for the resumed run", len(files) == 2, files)
            check_events(checks, "a resumed run", out, started)
        # What `tensorboard --logdir` makes of a directory of runs.
        runs = EventMultiplexer().AddRunsFromDirectory(directory).Reload().Runs()
        checks.check("TensorBoard finds one run", list(runs) == ["run"], runs)
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()

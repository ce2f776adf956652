#!/usr/bin/env python3
"""Runs training recipes with several seeds, and compares their losses.

    dev/recipes/run.py TEXT [RECIPE|GROUP...] trains what results.csv lacks, appends to it, and prints the table
    dev/recipes/run.py --table                prints the table of all that was run

recipes.txt has a recipe per line: a name, the number of steps, and options of ./train_gpt2. All recipes of a group (a
word in brackets on a line of its own) take about the same number of floating-point operations. The first of a group is
what the others are compared with; after ± stands the standard error of a mean or difference (Welch's), ? for one seed. The
last tenth of TEXT is held out, and the loss is that of the final model on its first 512 KiB, in nats per byte, so that
vocabularies can be compared.

--jobs N trains N at a time with --threads T each. Results do not depend on either, nor on the machine's load.
"""

import argparse
import concurrent.futures
import csv
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
VALIDATION_BYTES = 512 << 10
COLUMNS = ["text", "recipe", "steps", "options", "seed", "nats_per_byte", "train_loss", "seconds"]


def read_recipes():
    """Returns {name: (group, steps, options)} in the file's order."""
    recipes, group = {}, ""
    for line in (HERE / "recipes.txt").read_text().splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0].startswith("["):
            group = words[0].strip("[]")
            continue
        name, steps, *options = words
        if name in recipes:
            sys.exit(f"recipes.txt: {name} is there twice")
        recipes[name] = (group, int(steps), " ".join(options))
    return recipes


def split_text(path, directory):
    """Writes all but the last tenth of a text, and the beginning of that tenth, and returns both paths."""
    text = pathlib.Path(path).read_bytes()
    cut = text.rindex(b"\n", 0, len(text) * 9 // 10) + 1
    parts = {"train": text[:cut], "val": text[cut : cut + VALIDATION_BYTES]}
    for name, part in parts.items():
        (directory / f"{name}.txt").write_bytes(part)
    return directory / "train.txt", directory / "val.txt"


def final_training_loss(log):
    """The mean training loss of a log's last tenth."""
    losses = [float(m) for m in re.findall(r'"split":"train","loss":([0-9.]+)', log)]
    return statistics.mean(losses[-max(1, len(losses) // 10):])


def train(program, recipe, seed, parts, name, directory, threads):
    """Trains and evaluates a recipe. Returns the row for results.csv."""
    _, steps, options = recipe
    out = pathlib.Path(directory) / f"{name}-{seed}"
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    start = time.time()
    subprocess.run(
        [program, "train", "--data", parts[0], "--val", parts[1], "--out", out, "--steps", str(steps), "--seed", str(seed),
         "--eval-every", "0", "--sample-every", "0", "--save-every", str(steps), *options.split()],
        check=True, env=environment, stdout=subprocess.DEVNULL)  # fmt: skip
    seconds = time.time() - start
    said = subprocess.run([program, "eval", "--from", out, "--data", parts[1], "--batch", "16"],
                          check=True, env=environment, capture_output=True, text=True).stdout  # fmt: skip
    bits = float(re.search(r"([0-9.]+) bits per byte", said)[1])
    loss = final_training_loss((out / "log.jsonl").read_text())
    shutil.rmtree(out)
    return {"recipe": name, "steps": steps, "options": options, "seed": seed,
            "nats_per_byte": f"{bits * math.log(2):.5f}", "train_loss": f"{loss:.4f}", "seconds": f"{seconds:.0f}"}  # fmt: skip


def error_of_mean(losses):
    return statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else math.nan


def print_table(text, rows, recipes):
    print(f"{text}:\n")
    print("| recipe | steps | options | seeds | nats per byte | against the first |")
    print("|---|---:|---|---:|---:|---:|")
    first = {}
    for name, (group, steps, options) in recipes.items():
        losses = [float(r["nats_per_byte"]) for r in rows if (r["text"], r["recipe"], r["options"]) == (text, name, options)]
        if not losses:
            continue
        mean, error = statistics.mean(losses), error_of_mean(losses)
        mean_of_first, error_of_first = first.setdefault(group, (mean, error))
        against = f"{mean - mean_of_first:+.4f} ± {math.hypot(error, error_of_first):.4f}"
        if mean == mean_of_first:
            against = ""
        print(f"| {name} | {steps} | `{options}` | {len(losses)} | {mean:.4f} ± {error:.4f} | {against} |".replace("nan", "?"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?")
    parser.add_argument("only", nargs="*", metavar="RECIPE|GROUP")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--program", default="./train_gpt2")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=math.inf, help="start nothing after this time")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results.csv")
    options = parser.parse_args()
    recipes = read_recipes()
    rows = list(csv.DictReader(options.results.open())) if options.results.exists() else []
    if not options.table:
        text = pathlib.Path(options.text).stem
        done = {(r["text"], r["recipe"], r["options"], int(r["seed"])) for r in rows}
        wanted = [(name, seed) for seed in range(1, options.seeds + 1) for name in recipes
                  if (not options.only or {name, recipes[name][0]} & set(options.only)) and (text, name, recipes[name][2], seed) not in done]  # fmt: skip
        if not options.results.exists():
            options.results.write_text(",".join(COLUMNS) + "\n")
        started = time.time()
        with tempfile.TemporaryDirectory() as directory, options.results.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            parts = split_text(options.text, pathlib.Path(directory))

            def run(job):
                if time.time() - started > options.minutes * 60:
                    return None
                return train(options.program, recipes[job[0]], job[1], parts, job[0], directory, options.threads)

            with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
                for future in concurrent.futures.as_completed([pool.submit(run, job) for job in wanted]):
                    try:
                        row = future.result()
                    except subprocess.CalledProcessError as error:
                        print(error, file=sys.stderr)
                        continue
                    if row:
                        rows.append({"text": text} | row)
                        writer.writerow(rows[-1])
                        file.flush()
    for text in sorted({r["text"] for r in rows}):
        print_table(text, rows, recipes)


if __name__ == "__main__":
    main()

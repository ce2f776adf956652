#!/usr/bin/env python3
"""Rewrites the tables of rungs in dev/matmul/README.md and dev/attention/README.md from the CSV files beside them.

A table's heading names the pass: | forward | what it adds | AVX2 | of FMAs | gain | AVX-512 | of FMAs | gain |. Each row
names a rung, whose times and shares come from the CSV files; a gain is the quotient of two times as printed. The texts in
between stay.
"""

import csv
import os
import re
import sys

DEV = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dev")
LADDERS = ["matmul", "attention"]
RESULTS = {"AVX2": "avx2.csv", "AVX-512": "avx512.csv"}  # vectors: what dev/build/NAME --csv wrote on such a machine
HEADING = re.compile(r"\| (\w+) \| what it adds" + "".join(rf" \| {kind} \| of FMAs \| gain" for kind in RESULTS) + r" \|")


def measured(folder):
    """{pass: {rung: [(milliseconds as printed, share in % as printed) of each file]}}, in the order of the files."""
    passes = {}
    for name in RESULTS.values():
        with open(os.path.join(folder, name), newline="", encoding="utf-8") as f:
            for row in csv.DictReader(f):
                if row["correct"] != "OK":
                    raise ValueError(f"rung {row['name']} in {name} is not correct")
                numbers = f"{1e3 * float(row['seconds']):.1f}", f"{100 * float(row['share']):.1f}"
                passes.setdefault(row["pass"], {}).setdefault(row["name"], []).append(numbers)
    for rungs in passes.values():
        for rung, numbers in rungs.items():
            if len(numbers) != len(RESULTS):
                raise ValueError(f"rung {rung} is not in all of {', '.join(RESULTS.values())}")
    return passes


def with_tables(text, passes):
    """The chapter's text with the numbers of `passes` in its tables."""
    lines, rungs, before, left = [], None, None, dict(passes)
    for line in text.splitlines():
        if heading := HEADING.fullmatch(line):
            rungs, before = dict(left.pop(heading[1])), None
        elif rungs is not None and not line.startswith("|"):
            if rungs:
                raise ValueError(f"a table has no row for {', '.join(rungs)}")
            rungs = None
        elif rungs is not None and not line.startswith("|---"):
            name, adds = [cell.strip() for cell in line.split("|")[1:3]]
            numbers = rungs.pop(name)
            line = f"| {name} | {adds} |"
            for i, (time, share) in enumerate(numbers):
                gain = f" {float(before[i][0]) / float(time):.2f} ×" if before else ""
                line += f" {time} ms | {share} % |{gain} |"
            before = numbers
        lines.append(line)
    if left:
        raise ValueError(f"there is no table for {', '.join(left)}")
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) > 1:
        print(f"ladder_tables.py: {sys.argv[1]}: this script takes no arguments", file=sys.stderr)
        return 2
    for name in LADDERS:
        path = os.path.join(DEV, name, "README.md")
        try:
            with open(path, encoding="utf-8") as f:
                text = with_tables(f.read(), measured(os.path.dirname(path)))
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        except (OSError, KeyError, ValueError) as e:
            print(f"ladder_tables.py: {path}: {type(e).__name__}: {e}", file=sys.stderr)
            return 2
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

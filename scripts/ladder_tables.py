#!/usr/bin/env python3
"""Rewrites the tables of rungs in dev/matmul/README.md and dev/attention/README.md from results.csv beside them.

A table's heading names the pass: | forward | what it adds | time | of FMAs | gain |. Each row names a rung, whose times
and shares come from the CSV file; a gain is the quotient of two times as printed. The texts in between stay.
"""

import csv
import os
import re
import sys

DEV = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dev")
LADDERS = ["matmul", "attention"]
HEADING = re.compile(r"\| (\w+) \| what it adds \| time \| of FMAs \| gain \|")


def measured(folder):
    """{pass: {rung: (milliseconds as printed, share in % as printed)}}, in the order of the file."""
    passes = {}
    with open(os.path.join(folder, "results.csv"), newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            if row["correct"] != "OK":
                raise ValueError(f"rung {row['name']} is not correct")
            numbers = f"{1e3 * float(row['seconds']):.1f}", f"{100 * float(row['share']):.1f}"
            passes.setdefault(row["pass"], {})[row["name"]] = numbers
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
            time, share = rungs.pop(name)
            gain = f" {float(before) / float(time):.2f} ×" if before else ""
            line, before = f"| {name} | {adds} | {time} ms | {share} % |{gain} |", time
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

#!/usr/bin/env python3
"""Checks the chapters dev/NAME/README.md: the Python prints what the chapter says, the C++ is in the ladder, and the
tables of rungs agree with results.csv (ladder_tables.py)."""

import contextlib
import io
import os
import re
import sys

import ladder_tables

CHAPTERS = ["layernorm", "matmul", "attention"]


def blocks(text):
    """(language, code) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def unindented(code):
    return "".join(line.strip() + "\n" for line in code.splitlines())


def check_code(chapter, folder):
    """(passed, failed) blocks of code."""
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as f:
        found = blocks(f.read())
    with open(os.path.join(folder, "ladder.cpp"), encoding="utf-8") as f:
        ladder = unindented(f.read())
    passed = failed = 0
    for i, (language, code) in enumerate(found):
        if language == "cpp":
            good, fault = unindented(code) in ladder, "is not in ladder.cpp"
        elif language == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code, {})
            good, fault = printed.getvalue() == found[i + 1][1], "prints\n" + printed.getvalue()
        else:
            continue
        passed, failed = passed + good, failed + (not good)
        if not good:
            print(f"FAIL {chapter}/README.md: this {language} {fault}:\n{code}")
    if passed + failed < 3:
        print(f"FAIL {chapter}/README.md: {passed + failed} blocks of code, expected at least 3")
        failed += 1
    return passed, failed


def check_tables(chapter, folder):
    """(passed, failed): whether ladder_tables.py would change nothing."""
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as f:
        text = f.read()
    try:
        wanted = ladder_tables.with_tables(text, ladder_tables.measured(folder))
    except (OSError, KeyError, ValueError) as e:
        print(f"FAIL {chapter}/README.md: its tables: {type(e).__name__}: {e}")
        return 0, 1
    for line, new in zip(text.splitlines(), wanted.splitlines()):
        if line != new:
            print(f"FAIL {chapter}/README.md: results.csv gives another row; run scripts/ladder_tables.py\n{line}\n{new}")
            return 0, 1
    return 1, 0


def main():
    results = []
    for chapter in CHAPTERS:
        folder = os.path.join(ladder_tables.DEV, chapter)
        results.append(check_code(chapter, folder))
        if chapter in ladder_tables.LADDERS:
            results.append(check_tables(chapter, folder))
    passed, failed = map(sum, zip(*results))
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

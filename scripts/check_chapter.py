#!/usr/bin/env python3
"""Checks the code in dev/layernorm/README.md: the Python prints what the chapter says, and the C++ is in the ladder."""

import contextlib
import io
import os
import re
import sys

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dev", "layernorm")


def blocks(text):
    """(language, code) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def unindented(code):
    return "".join(line.strip() + "\n" for line in code.splitlines())


def main():
    with open(os.path.join(FOLDER, "README.md"), encoding="utf-8") as f:
        found = blocks(f.read())
    with open(os.path.join(FOLDER, "ladder.cpp"), encoding="utf-8") as f:
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
            print(f"FAIL README.md: this {language} {fault}:\n{code}")
    if passed + failed < 3:
        print(f"FAIL README.md: {passed + failed} blocks of code, expected at least 3")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

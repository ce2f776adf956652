#!/usr/bin/env python3
"""Checks the chapters dev/NAME/README.md: their Python prints what they say, their C++ is in the ladder, their tables of times
are those of the CSV files, with gains that are ratios of the printed times, and their pictures were drawn from these."""

import contextlib
import csv
import hashlib
import io
import os
import re
import sys

import ladder_tables

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PICTURES = {  # SVG: the CSV file that it shows
    "dev/layernorm/ladder.svg": "dev/layernorm/ladder.csv",
    "dev/layernorm/speed.svg": "dev/layernorm/results.csv",
    "dev/layernorm/trade.svg": "dev/layernorm/results.csv",
    "dev/norm_experiment/loss.svg": "dev/norm_experiment/results.csv",
    "dev/matmul/rungs.svg": "dev/matmul/results.csv",
    "dev/attention/rungs.svg": "dev/attention/results.csv",
}


def text_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def rows_of(path):
    return list(csv.DictReader(io.StringIO(text_of(path))))


def blocks(text):
    """(language, code) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def unindented(code):
    return "".join(line.strip() + "\n" for line in code.splitlines())


def table(chapter, heading):
    """The cells of the rows of the table whose heading line begins with `heading`."""
    found = re.search(rf"^{re.escape(heading)}.*\n\|[-|]+\n((?:\|.*\n)*)", chapter, re.MULTILINE)
    lines = found[1].splitlines() if found else []
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(name, chapter):
    """(what, fault or "") of each block of code."""
    ladder = unindented(text_of(f"dev/{name}/ladder.cpp"))
    found = blocks(chapter)
    checked = 0
    for i, (language, block) in enumerate(found):
        if language == "cpp":
            fault = "" if unindented(block) in ladder else "is not in ladder.cpp:\n" + block
        elif language == "python":
            printed = io.StringIO()
            try:
                with contextlib.redirect_stdout(printed):
                    exec(block, {})
                fault = "" if printed.getvalue() == found[i + 1][1] else "prints\n" + printed.getvalue()
            except ImportError as e:
                fault = f"needs PyTorch ({e}); run scripts/setup.sh pytorch"
        else:
            continue
        checked += 1
        yield f"the {language} block {i + 1}", fault
    yield "the blocks of code", "" if checked >= 3 else f"are {checked}, expected at least 3"


def differs(found, expected):
    return "" if found == expected else f"has {found}, expected {expected}"


def layernorm_tables(chapter):
    """(what, fault or "") of each table of times."""
    rungs = rows_of("dev/layernorm/ladder.csv")
    for name in ("forward", "backward"):
        times = [(r["name"], r["ms"]) for r in rungs if r["pass"] == name]
        expected = []
        for i, (rung, ms) in enumerate(times):
            gain = f"{float(times[i - 1][1]) / float(ms):.2f} ×" if i else ""
            expected.append([rung, f"{ms} ms", gain])
        rows = [row[:1] + row[2:] for row in table(chapter, f"| {name} | what it adds |")]
        yield f"the ladder's table {name}", differs(rows, expected)
    separate, fused, production = (r["ms"] for r in rungs if r["pass"] == "residual + layernorm")
    for ms in (f"took {separate} ms", f"{fused} ms; in production {production} ms"):
        yield f"the text on the residual, '{ms}'", "" if ms in " ".join(chapter.split()) else "is not in the chapter"

    results = rows_of("dev/layernorm/results.csv")
    expected = []
    for saved, label in (("norm", "norm"), ("statistics", "mean and rstd"), ("nothing", "nothing")):
        forward, backward = (next(r for r in results if r["work"] == f"keep {saved} {way}") for way in ("forward", "backward"))
        times = [float(forward["ms"]), float(backward["ms"])]
        memory = "0" if saved == "nothing" else f"{forward['MiB kept']} MiB"
        expected.append([label, memory, *(f"{ms:.2f} ms" for ms in (*times, sum(times)))])
    yield "the table of what is saved", differs(table(chapter, "| saved |"), expected)

    copies = {r["channels"]: float(r["GB/s"]) for r in results if r["work"] == "copy"}
    works = {"forward": "layernorm forward", "residual + forward": "residual + layernorm forward",
             "backward": "layernorm backward", "RMSNorm forward": "rmsnorm forward", "RMSNorm backward": "rmsnorm backward"}
    expected = []
    for label, work in works.items():
        shares = {r["channels"]: 100 * float(r["GB/s"]) / copies[r["channels"]] for r in results if r["work"] == work}
        expected.append([label, *(f"{shares[width]:.0f}" for width in copies)])
    heading = "| values per row | " + " | ".join(copies) + " |"
    yield "the table of shares of the copy", differs(table(chapter, heading), expected)


def rung_tables(name, chapter):
    """(what, fault or ""): whether ladder_tables.py would change nothing."""
    try:
        wanted = ladder_tables.with_tables(chapter, ladder_tables.measured(os.path.join(ROOT, "dev", name)))
    except (OSError, KeyError, ValueError) as e:
        yield "the tables", f"{type(e).__name__}: {e}"
        return
    pairs = zip(chapter.splitlines(), wanted.splitlines())
    yield "the tables", next((f"are older than results.csv; run scripts/ladder_tables.py:\n{line}\n{new}"
                              for line, new in pairs if line != new), "")


def pictures(name, chapter):
    """(what, fault or "") of each picture: it exists, and it was drawn from the present numbers."""
    for svg in re.findall(r"\]\((\S+\.svg)\)", chapter):
        path = os.path.normpath(f"dev/{name}/{svg}")
        if not os.path.exists(os.path.join(ROOT, path)):
            yield path, "does not exist"
            continue
        source = PICTURES.get(path)
        digest = hashlib.sha256(text_of(source).encode()).hexdigest() if source else ""
        current = not source or f"{source} sha256:{digest}" in text_of(path)
        yield path, "" if current else f"is older than {source}; draw it again (scripts/README.md)"


def main():
    passed = failed = 0
    for name in ("layernorm", *ladder_tables.LADDERS):
        chapter = text_of(f"dev/{name}/README.md")
        tables = layernorm_tables(chapter) if name == "layernorm" else rung_tables(name, chapter)
        for results in (code(name, chapter), tables, pictures(name, chapter)):
            for what, fault in results:
                passed, failed = passed + (not fault), failed + bool(fault)
                if fault:
                    print(f"FAIL dev/{name}/README.md: {what} {fault}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

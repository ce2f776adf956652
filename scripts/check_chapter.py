#!/usr/bin/env python3
"""Checks the chapters dev/NAME/README.md: their Python prints what they say, their C++ is in the ladder, their tables of times
are those of the CSV files, with gains that are ratios of the printed times, their pictures were drawn from these,
are those of the CSV files, with gains that are ratios of the printed times, their pictures were drawn from these,
The Chinese texts have the same code, formulas, links and numbers as the English ones, and break lines where a space belongs."""

import contextlib
import csv
import hashlib
import io
import itertools
import math
import os
import re
import statistics
import sys

import ladder_tables

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PICTURES = {  # SVG: the CSV files that it shows
    "dev/layernorm/ladder.svg": ["dev/layernorm/ladder.csv"],
    "dev/layernorm/speed.svg": ["dev/layernorm/results.csv"],
    "dev/layernorm/trade.svg": ["dev/layernorm/results.csv"],
    "dev/norm_experiment/loss.svg": ["dev/norm_experiment/results.csv"],
    "dev/recipes/losses.svg": ["dev/recipes/results.csv"],
    **{f"dev/{name}/rungs.svg": [f"dev/{name}/{results}" for results in ladder_tables.RESULTS.values()]
       for name in ladder_tables.LADDERS},
}
CHINESE = {  # words in the tables of times: what layernorm_tables() looks for. Longer ones come first.
    "什么也不保存": "nothing", "保存": "saved", "mean 和 rstd": "mean and rstd", "新增的做法": "what it adds",
    "每行的值数": "values per row", "前向": "forward", "后向": "backward", "残差": "residual",
    "；在 production 中为": "; in production", "用时": "took", "行数 × 值数": "rows × values",
}
WIDEST = 432  # points: a phone shows a picture of 6 inches at about 60 %, with text of 10 points at 6
NUMBER = re.compile(r"−?\d+(?:[.,]\d+)*")


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
    for name in ("forward", "backward", "RMSNorm forward", "RMSNorm backward"):
        times = [r for r in rungs if r["pass"] == name]
        expected = []
        for i, rung in enumerate(times):
            expected.append([rung["name"]])
            for column in ("AVX2 ms", "AVX-512 ms"):
                gain = f"{float(times[i - 1][column]) / float(rung[column]):.2f} ×" if i else ""
                expected[-1] += [f"{rung[column]} ms", gain]
        rows = [row[:1] + row[2:] for row in table(chapter, f"| {name} | what it adds |")]
        yield f"the ladder's table {name}", differs(rows, expected)
    residual = [r for r in rungs if r["pass"] == "residual + layernorm"]
    separate, fused, production = (r["AVX2 ms"] for r in residual)
    for ms in (f"took {separate} ms", f"{fused} ms; in production {production} ms", *(r["AVX-512 ms"] for r in residual)):
        yield f"the text on the residual, '{ms}'", "" if ms in " ".join(chapter.split()) else "is not in the chapter"

    results = rows_of("dev/layernorm/results.csv")
    expected = []
    for saved, label in (("norm", "norm"), ("statistics", "mean and rstd"), ("nothing", "nothing")):
        forward, backward = (next(r for r in results if r["work"] == f"keep {saved} {way}") for way in ("forward", "backward"))
        times = [float(forward["ms"]), float(backward["ms"])]
        memory = "0" if saved == "nothing" else f"{forward['MiB kept']} MiB"
        expected.append([label, memory, *(f"{ms:.2f} ms" for ms in (*times, sum(times)))])
    yield "the table of what is saved", differs(table(chapter, "| saved |"), expected)

    for row in table(chapter, "| rows × values |"):
        for ours, theirs, ratio in (row[1:4], row[4:7]):
            expected = f"{float(theirs.split()[0]) / float(ours.split()[0]):.2f} ×"
            yield f"PyTorch's time over ours, {row[0]}", differs(ratio, expected)

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
    yield "the tables", next((f"are older than the CSV files; run scripts/ladder_tables.py:\n{line}\n{new}"
                              for line, new in pairs if line != new), "")


def recipe_tables(chapter):
    """(what, fault or ""): each row's seeds and mean loss are those of its runs on one of the texts."""
    runs = {}
    with open(os.path.join(ROOT, "dev/recipes/results.csv"), newline="") as f:
        for row in csv.DictReader(f):
            runs.setdefault((row["recipe"], row["steps"]), {}).setdefault(row["text"], []).append(float(row["nats_per_byte"]))
    rows = re.findall(r"^\| (\S+) \| (\d+) \| .*? \| (\d+) \| ([\d.]+ ± [\d.?]+) \|", chapter, flags=re.MULTILINE)
    for recipe, steps, seeds, loss in rows:
        measured = []
        for losses in runs.get((recipe, steps), {}).values():
            error = f"{statistics.stdev(losses) / math.sqrt(len(losses)):.4f}" if len(losses) > 1 else "?"
            measured.append((str(len(losses)), f"{statistics.mean(losses):.4f} ± {error}"))
        fault = "" if (seeds, loss) in measured else f"{seeds} seeds, {loss}; results.csv has {measured}"
        yield f"the row {recipe}", fault


def pictures(name, chapter):
    """(what, fault or "") of each picture: it exists, and it was drawn from the present numbers."""
    for svg in re.findall(r"\]\((\S+\.svg)\)", chapter):
        path = os.path.normpath(f"dev/{name}/{svg}")
        if not os.path.exists(os.path.join(ROOT, path)):
            yield path, "does not exist"
            continue
        for source in PICTURES.get(path, []):
            digest = hashlib.sha256(text_of(source).encode()).hexdigest()
            current = f"{source} sha256:{digest}" in text_of(path)
            yield path, "" if current else f"is older than {source}; draw it again (scripts/README.md)"
        width = float(re.search(r'width="([\d.]+)pt"', text_of(path))[1])
        yield f"{path} on a phone", "" if width <= WIDEST else f"is {width} points wide, and its text too small"
        yield f"{path} on a dark page", "" if "(prefers-color-scheme: dark)" in text_of(path) else "stays light"


def line_links(name, chapter):
    """(what, fault or "") of each [`code`](file#L1): the code is on that line."""
    for code_, path, line in re.findall(r"\[`([^`]+)`\]\(([^)\s#]+)#L(\d+)\)", chapter):
        lines = text_of(os.path.normpath(f"dev/{name}/{path}")).splitlines()
        number = next((i for i, text in enumerate(lines, 1) if code_ in text), 0)
        here = int(line) <= len(lines) and code_ in lines[int(line) - 1]
        yield f"the link to line {line} of {path}", "" if here else f"has no {code_} there; the first is in line {number}"


def shared(chapter):
    """(what, values) of all that a chapter and its translation have in common."""
    lines = chapter.splitlines()
    yield "headings", [line.split()[0] for line in lines if line.startswith("#")]
    yield "fenced blocks", re.findall(r"^ *```.*?^ *```$", chapter, re.DOTALL | re.MULTILINE)
    yield "indented formulas", [line.replace("因为", "since") for line in lines if line.startswith("    ")]
    yield "tables, numbers by cell", [[NUMBER.findall(cell) for cell in line.split("|")] for line in lines if "|" in line[:4]]
    yield "links", sorted(set(re.findall(r"\]\(([^)\s]+)\)", chapter)) - {"README.md", "README.zh-CN.md"})
    prose = re.sub(r"^ *```.*?^ *```$", "", chapter, flags=re.DOTALL | re.MULTILINE)
    yield "code in the text", sorted({" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)})
    for i, section in enumerate(re.split(r"^##+ .*$", chapter, flags=re.MULTILINE)):
        yield f"numbers of section {i}", sorted(NUMBER.findall(section))


def translation(chapter, translated):
    """(what, fault or "") of each thing that a chapter and its translation have in common."""
    for (what, expected), (_, found) in zip(shared(chapter), shared(translated)):
        pairs = itertools.zip_longest(found, expected)
        yield what, next((differs(*pair) for pair in pairs if pair[0] != pair[1]), "")


def line_breaks(translated):
    """(what, fault or ""): browsers show a line break as a space, which does not belong beside a full-width mark."""
    prose = re.sub(r"^ *```.*?^ *```$", "", translated, flags=re.DOTALL | re.MULTILINE)
    marks = "[，。；：！？、（）“”]"
    found = re.search(rf"[^\n]{{0,20}}(?:{marks}\n(?! *(?:- |\||#|<|\d+\. |\n|$))|[^\n]\n *{marks})", prose)
    yield "line breaks", f"are shown as a space after '{found[0].strip()}'" if found else ""


def translated_readme(readme, translated):
    """(what, fault or ""): the blocks of README.zh-CN.md are in README.md, up to comments, and so are its numbers."""

    def uncommented(text):
        return [re.sub(r" +# .*", "", code) for _, code in blocks(text)]

    found, expected = uncommented(translated), uncommented(readme)
    yield "the first commands and the output of make run", differs(found[:2], expected[:2])
    yield "the other blocks", differs([block for block in found if block not in expected], [])
    added = set(NUMBER.findall(translated)) - set(NUMBER.findall(readme))
    yield "numbers", f"that are not in README.md: {added}" if added else ""


def checks():
    """(path, results) of all texts."""
    for name in ("layernorm", *ladder_tables.LADDERS):
        chapter = text_of(f"dev/{name}/README.md")
        tables = layernorm_tables(chapter) if name == "layernorm" else rung_tables(name, chapter)
        yield f"dev/{name}/README.md", itertools.chain(code(name, chapter), tables, pictures(name, chapter),
                                                       line_links(name, chapter))

    recipes = text_of("dev/recipes/README.md")
    yield "dev/recipes/README.md", itertools.chain(recipe_tables(recipes), pictures("recipes", recipes))

    translated = text_of("dev/layernorm/README.zh-CN.md")
    in_english = translated
    for chinese, english in CHINESE.items():
        in_english = in_english.replace(chinese, english)
    yield "dev/layernorm/README.zh-CN.md", itertools.chain(
        code("layernorm", translated), layernorm_tables(in_english), pictures("layernorm", translated),
        line_links("layernorm", translated),
        translation(text_of("dev/layernorm/README.md"), translated), line_breaks(translated))
    readme = text_of("README.zh-CN.md")
    yield "README.zh-CN.md", itertools.chain(translated_readme(text_of("README.md"), readme), line_breaks(readme))


def main():
    passed = failed = 0
    for path, results in checks():
        for what, fault in results:
            passed, failed = passed + (not fault), failed + bool(fault)
            if fault:
                print(f"FAIL {path}: {what} {fault}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

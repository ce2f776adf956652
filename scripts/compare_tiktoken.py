#!/usr/bin/env python3
"""Compares `train_gpt2 tokenize --tokenizer gpt2` with tiktoken's gpt2, token for token and offline.

tiktoken's encoding is built from data/vocab.bpe (scripts/get_data.sh). Code points that are unassigned in PCRE2's Unicode
tables are left out of the comparison, since tiktoken's tables may be newer; the number that differs is printed.
Ends with `N passed, N failed`; exit status 1 if any failed.
"""
import argparse
import ctypes
import ctypes.util
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import numpy as np
import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

ROOT = pathlib.Path(__file__).resolve().parent.parent

SPACES = [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
NEARLY_SPACES = [0x1C, 0x1D, 0x1E, 0x1F, 0x180E, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0x00]
HARD = [
    "Hello, world!", "hello", " hello", "  hello", "   hello   ", " ", "  ", "\n", "\n\n", " \n", "\n ", "\r\n\r\n x",
    "\t\tx", "a  b", "a \n b", "x\n\n\n", "don't we'll I'm they're you've he'd it's", "DON'T 'S 's' ''s '' 'll'll",
    "'t", "'", " 's", " '", "’s don’t", "123 4567 89.0 1e-5", "x1y2", "1st 2nd", "½ ² Ⅷ ٣ ५ 一二三", "a_b-c=d+e",
    "...", "!!!???", " .", " ...x", "#include <stdio.h>\nint main(void) {\n    return 0;\n}\n",
    "<|endoftext|>", "a<|endoftext|>b", "one \n<|endoftext|><|endoftext|>\n\n two", "<|endoftext|", "<<|endoftext|>>",
    "<|end<|endoftext|>oftext|>", " <|endoftext|> it's", "<|ENDOFTEXT|>", "naïve café Ünïcödé Straße", "cafe\u0301 e\u0301\u0302", "\u0301", " \u0301",
    "a\u0301'sb", "中文分词很难。", "日本語のテキスト、カタカナ", "한국어 텍스트", "ไทย", "हिन्दी", "العربية", "עברית", "Русский текст",
    "🙂", "🙂🙂", " 🙂", "👨‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "👍🏽", "\U0001F9D1\u200D\U0001F680", "\ufeffBOM", "\x00", "a\x00b", "\x1c\x1d\x1e\x1f x",
    "\u180e\u180ex", "\u200bx", "\u0085\u0085x", "\u00a0\u00a0x", "\u00a0 x", " \u00a0x", "\u2028\u2029x", "\u3000\u3000中",
    "\U0010FFFF", "\ue000", "𝐀𝐁 𝟏𝟐", "ﬁ ǅ ª º", "ＡＢＣ１２３", "a" * 63, "a" * 64, "a" * 65, "ab" * 100, " " * 64 + "x",
    *(f"a{chr(c)}'s {chr(c)}x{chr(c)}{chr(c)}" for c in SPACES + NEARLY_SPACES),
    "\n" * 65, "=" * 130, "é" * 70, "ÃÂ" * 200, "The quick brown fox jumps over the lazy dog. " * 5,
]  # fmt: skip
HARD_BYTES = [
    b"\xff", b"\x80", b"a\x80b", b"\xc0\x80", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82x", b"\xe2(\xa1", b"\xe0\x80\x80",
    b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf0\x9f\x92", b"\xf0\x9f\x92x", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xf0\x9f\x99\x82\xf0\x9f", b"ok \xfe\xfe ok", b"\xe4\xb8\xad\xe4\xb8", b"\xc3\xa9\xa9",
]  # fmt: skip
# tiktoken itself fails (a stack overflow in its regular expressions) on a million spaces before a word.
RUNS = {
    "a": 100_000, " ": 300_000, "\n": 300_000, "\t": 100_000, "=": 100_000, "é": 100_000, "中": 100_000, "1": 100_000,
    "ab": 100_000, "!?": 50_000, " \n": 200_000, "\u00a0": 100_000, "x ": 100_000, "'s": 100_000,
}  # fmt: skip


def tiktoken_gpt2(vocab_bpe):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [b for b in range(256) if b not in printable]
    symbol_bytes = {chr(b): b for b in printable}
    symbol_bytes.update({chr(256 + i): b for i, b in enumerate(order[len(printable) :])})
    ranks = {bytes([b]): i for i, b in enumerate(order)}
    for line in vocab_bpe.read_text(encoding="utf-8").splitlines()[1:]:
        ranks[bytes(symbol_bytes[c] for c in line.replace(" ", ""))] = len(ranks)
    return tiktoken.Encoding(
        "gpt2", explicit_n_vocab=50257, pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )


def pcre2_unassigned():
    """PCRE2's Unicode version, and the code points that are unassigned in its tables."""
    pcre2 = ctypes.CDLL(ctypes.util.find_library("pcre2-8") or "libpcre2-8.so.0")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("compile", pointer, [ctypes.c_char_p, size, ctypes.c_uint32, pointer, pointer, pointer]),
        ("match_data_create", pointer, [ctypes.c_uint32, pointer]),
        ("match", ctypes.c_int, [pointer, ctypes.c_char_p, size, size, ctypes.c_uint32, pointer, pointer]),
        ("get_ovector_pointer", ctypes.POINTER(size), [pointer]),
        ("config", ctypes.c_int, [ctypes.c_uint32, ctypes.c_char_p]),
    ):
        function = getattr(pcre2, f"pcre2_{name}_8")
        function.restype, function.argtypes = result, arguments
    version = ctypes.create_string_buffer(64)
    pcre2.pcre2_config_8(10, version)  # PCRE2_CONFIG_UNICODE_VERSION
    error, where = ctypes.c_int(), size()
    code = pcre2.pcre2_compile_8(rb"\p{Cn}++", 8, 0x80000, ctypes.byref(error), ctypes.byref(where), None)  # PCRE2_UTF
    match = pcre2.pcre2_match_data_create_8(1, None)
    bounds = pcre2.pcre2_get_ovector_pointer_8(match)
    text = "".join(map(chr, all_code_points())).encode()
    found, at = [], 0
    while pcre2.pcre2_match_8(code, text, len(text), at, 0, match, None) > 0:
        found += map(ord, text[bounds[0] : bounds[1]].decode())
        at = bounds[1]
    return version.value.decode(), found


def all_code_points():
    return [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def random_strings(rng, assigned, count):
    pools = [
        list(range(32, 127)), SPACES, SPACES + NEARLY_SPACES, list(map(ord, "'stmdlvreSTM ’")), list(map(ord, "0123456789²½٣५Ⅷ")),
        list(range(0xA0, 0x250)), list(range(0x300, 0x370)), list(range(0x4E00, 0x9FA6)), [c for c in assigned if 0x1F300 <= c < 0x1FB00],
        [c for c in assigned if c < 0x10000], [c for c in assigned if c < 0xE0000], assigned,
    ]  # fmt: skip
    for _ in range(count):
        chosen = rng.sample(pools, rng.randint(1, 4))
        yield "".join(chr(rng.choice(rng.choice(chosen))) for _ in range(rng.randint(1, 40)))


def random_bytes(rng, count):
    for i in range(count):
        if i % 2:
            yield rng.randbytes(rng.randint(1, 60))
        else:  # UTF-8 with some bytes broken
            data = bytearray("".join(chr(rng.choice((65, 0xE9, 0x4E2D, 0x1F642, 32))) for _ in range(rng.randint(1, 20))).encode())
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            yield bytes(data)


def encode(encoding, data, ordinary=False):
    """With --no-special-tokens (`ordinary`) the names of special tokens are ordinary text."""
    text = data.decode("utf-8", errors="replace")
    return encoding.encode_ordinary(text) if ordinary else encoding.encode(text, allowed_special="all")


class Comparison:
    def __init__(self, binary, encoding, directory):
        self.binary, self.encoding, self.directory = binary, encoding, pathlib.Path(directory)
        self.token_bytes = [encoding.decode_single_token_bytes(i) for i in range(encoding.n_vocab)]
        self.lengths = np.array([len(t) for t in self.token_bytes])
        self.passed = self.failed = self.runs = 0

    def reference(self, data, ordinary=False):
        return np.array(encode(self.encoding, data, ordinary), dtype=np.int64)

    def ours(self, data, ordinary=False):
        self.runs += 1
        text, out = self.directory / f"{self.runs}.txt", self.directory / f"{self.runs}.bin"
        text.write_bytes(data)
        command = [self.binary, "tokenize", str(text), str(out), "--tokenizer", "gpt2"]
        command += ["--no-special-tokens"] if ordinary else []
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit status {result.returncode}: {(result.stderr + result.stdout).strip()}")
        raw = out.read_bytes()
        header = np.frombuffer(raw[:1024], dtype="<i4")
        ids = np.frombuffer(raw[1024:], dtype="<u2").astype(np.int64)
        if list(header[:3]) != [20240520, 1, len(ids)]:
            sys.exit(f"{out}: header {list(header[:3])}, expected [20240520, 1, {len(ids)}]")
        text.unlink()
        out.unlink()
        return ids

    def fail(self, name, data, expected, found):
        self.failed += 1
        if self.failed <= 20:
            print(f"FAILED {name}: {data[:80]!r}\n  tiktoken {list(expected[:20])}\n  found    {list(found[:20])}")

    def one(self, name, data, ordinary=False):
        expected, found = self.reference(data, ordinary), self.ours(data, ordinary)
        if np.array_equal(expected, found):
            self.passed += 1
            return
        n = min(len(expected), len(found))
        first = int(np.argmax(np.append(expected[:n] != found[:n], True)))
        at = int(self.lengths[expected[:first]].sum())
        self.fail(f"{name}, token {first}, byte {at}", data[at:], expected[first:], found[first:])

    def differing(self, pieces):
        """The pieces that are encoded differently when all of them are in one text, one per line."""
        lines = [p.decode("utf-8", errors="replace").encode() + b"\n" for p in pieces]
        expected, found = self.reference(b"".join(lines)), self.ours(b"".join(p + b"\n" for p in pieces))
        if np.array_equal(expected, found):
            return []
        starts = [np.concatenate([[0], np.cumsum(self.lengths[ids])[:-1]]) for ids in (expected, found)]
        ends = np.cumsum([len(line) for line in lines])
        bounds = [np.concatenate([[0], np.searchsorted(s, ends)]) for s in starts]
        different = []
        for i, piece in enumerate(pieces):
            e, f = (ids[b[i] : b[i + 1]] for ids, b in zip((expected, found), bounds))
            if not np.array_equal(e, f):
                different.append((piece, e, f))
        return different

    def many(self, name, pieces):
        different = self.differing(pieces)
        for piece, expected, found in different:
            self.fail(name, piece, expected, found)
        self.passed += len(pieces) - len(different)


def write_golden(encoding, path):
    cases = [s.encode() for s in HARD] + HARD_BYTES
    lines = []
    for data in cases:
        case = {"hex": data.hex(), "ids": encode(encoding, data)}
        if b"<|" in data:
            case["ordinary"] = encode(encoding, data, ordinary=True)
        lines.append(json.dumps(case, separators=(",", ":")))
    head = json.dumps(f"tiktoken {tiktoken.__version__} gpt2, written by scripts/compare_tiktoken.py")
    pathlib.Path(path).write_text('{"source":' + head + ',\n"cases":[\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{path}: {len(lines)} cases")


def around(code_point):
    c = chr(code_point)  # its class decides where these are cut
    return f"a{c}'s{c}1 {c}  {c}b{c}{c}'t".encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "train_gpt2"), help="the program (./train_gpt2)")
    parser.add_argument("--strings", type=int, default=20_000, help="random Unicode strings, and half as many of bytes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--golden", metavar="FILE", help="only write tiktoken's ids of the hard cases for tokenizer_test")
    options = parser.parse_args()
    if not (ROOT / "data/vocab.bpe").exists():
        sys.exit("data/vocab.bpe: no such file; run scripts/get_data.sh")
    encoding = tiktoken_gpt2(ROOT / "data/vocab.bpe")
    if options.golden:
        write_golden(encoding, options.golden)
        return 0
    binary = str(pathlib.Path(options.binary).resolve())
    rng = random.Random(options.seed)
    version, unassigned = pcre2_unassigned()
    unknown = set(unassigned)
    assigned = [c for c in all_code_points() if c not in unknown]
    with tempfile.TemporaryDirectory() as directory:
        compare = Comparison(binary, encoding, directory)
        for text in HARD:
            compare.one("hard case", text.encode())
            if "<|" in text:
                compare.one("hard case, --no-special-tokens", text.encode(), ordinary=True)
        for data in HARD_BYTES:
            compare.one("hard bytes", data)
        for text, count in RUNS.items():
            for tail in ("", "x", " x"):
                compare.one(f"{count} × {text!r} + {tail!r}", (text * count + tail).encode())
        compare.many("code point", [around(c) for c in assigned])
        compare.many("random string", [s.encode() for s in random_strings(rng, assigned, options.strings)])
        compare.many("random bytes", list(random_bytes(rng, options.strings // 2)))
        newer = compare.differing([around(c) for c in unassigned])
        print(
            f"left out: {len(unassigned)} code points that PCRE2's tables (Unicode {version}) do not know; "
            f"{len(newer)} of them encode differently"
        )
        for name in ("tinyshakespeare.txt", "sotu.txt", "enwik8"):
            path = ROOT / "data" / name
            if path.exists():
                start = time.time()
                compare.one(name, path.read_bytes())
                print(f"{name}: {path.stat().st_size} bytes compared in {time.time() - start:.1f} s")
            else:
                print(f"{name}: not there, not compared (scripts/get_data.sh {name.removesuffix('.txt')})")
    print(f"{compare.passed} passed, {compare.failed} failed")
    return 1 if compare.failed else 0


if __name__ == "__main__":
    sys.exit(main())

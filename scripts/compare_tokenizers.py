#!/usr/bin/env python3
"""Compares tokenizers that ./train_gpt2 learns with those that Hugging Face's tokenizers learns from the same text:

    tokenize --train gives the same tokens, ids and merges, which include the committed ones (--golden);
    its tokenizer.json gives the same ids in tokenizers, in transformers and in ./train_gpt2;
    with --tokenizer bpe:N a training run learns from its training part, and AutoTokenizer opens its checkpoint;
    a tokenizer with superwords (--superwords, superbpe:N) gives the same ids in both libraries and in ./train_gpt2.

tokenizers gets each text as one string, not a list of lines, which would hide runs of white space that cross lines.
Exit status: 0 if all passed, 1 if a check failed.
"""

import argparse
import json
import os
import sys
import tempfile

import numpy as np
import tokenizers
import transformers

from checks import ROOT, Checks

END = "<|endoftext|>"
GOLDEN = os.path.join(ROOT, "dev/test/data/merges_golden.json")
SHAKESPEARE = os.path.join(ROOT, "data/tinyshakespeare.txt")
# Every script here is in Unicode 12: newer characters are letters only to the newer of the two programs.
PIECES = [
    "Zürich", " 中文", "日本語テキスト", "🙂", "👩\u200d👩\u200d👧", "ﬁ", "²³ Ⅷ १२३", "\u200b\u200d\ufeff", "e\u0301\u0301", "ſß",
    "\u00a0\u2003x", "\u180e", "\u0085", "𝒳𝟘", "don't", " I'LL", " we've", "'s", "\r\n\r\n", "  x\r\n", "\t\t y", "\x1c\x1d\0", " עברית",
    " العربية", "ไทย", "हिन्दी", " 한국어", " Ελληνικά", " русский", "aaaaaa", "aaa aa", "ababab", "------", "\n    return 0;\n", "<|endo", END,
]  # fmt: skip


def odd_text(random, pieces, broken=0):
    """The pieces in random order, with some bytes overwritten so that they are not UTF-8."""
    text = bytearray("".join(PIECES[i] for i in random.randint(0, len(PIECES), pieces)).encode())
    for at in random.randint(0, len(text), broken):
        text[at] = 0xFF
    return bytes(text)


def learn(data, vocab, documents):
    """tokenizers' BPE of a text, or of the parts of it between end-of-text tokens."""
    text = data.decode("utf-8", errors="replace")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.split(END) if documents else [text], trainer)
    return tokenizer


def merges_of(model):
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]


def golden_cases():
    with open(SHAKESPEARE, "rb") as f:
        shakespeare = f.read()
    for data, vocab, source in (shakespeare, 1024, {"file": "data/tinyshakespeare.txt"}), (
        odd_text(np.random.RandomState(1), 400, broken=20), 512, None,
    ):  # fmt: skip
        model = json.loads(learn(data, vocab, documents=True).to_str())["model"]
        yield {**(source or {"hex": data.hex()}), "vocab": vocab, "merges": merges_of(model)}


def write_golden(path):
    head = json.dumps(f"tokenizers {tokenizers.__version__}, written by scripts/compare_tokenizers.py")
    cases = ",\n".join(json.dumps(case, separators=(",", ":"), ensure_ascii=False) for case in golden_cases())
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"source":' + head + ',\n"cases":[\n' + cases + "\n]}\n")


def ids_of_shard(path):
    with open(path, "rb") as f:
        return np.frombuffer(f.read()[1024:], dtype="<u2").tolist()


def first_difference(found, expected):
    for i, (a, b) in enumerate(zip(found, expected)):
        if a != b:
            return f"at {i}: found {a!r}, expected {b!r}"
    return f"found {len(found)}, expected {len(expected)}"


def check_text(checks, directory, train_gpt2, name, data, vocab, documents=True):
    """Compares what is learned, and then the ids of the text."""
    title = f"{name}, {vocab} tokens" + ("" if documents else ", --no-special-tokens")
    base = os.path.join(directory, title.replace(" ", "_"))
    text, path, shard = f"{base}.txt", f"{base}.json", f"{base}.bin"
    with open(text, "wb") as f:
        f.write(data)
    as_text = [] if documents else ["--no-special-tokens"]
    command = [train_gpt2, "tokenize", "--train", text, "--vocab", str(vocab), path, *as_text]
    if checks.run(f"tokenize --train, {title}", command) is None:
        return
    theirs = learn(data, vocab, documents)
    expected = json.loads(theirs.to_str())["model"]
    with open(path, encoding="utf-8") as f:
        found = json.load(f)["model"]
    merges, expected_merges = merges_of(found), merges_of(expected)
    checks.check(f"merges of {title}", merges == expected_merges, first_difference(merges, expected_merges))
    checks.check(f"tokens and ids of {title}", found["vocab"] == expected["vocab"], "others")

    string = data.decode("utf-8", errors="replace")
    check_ids(checks, train_gpt2, title, text, path, shard, string, theirs.encode(string).ids)


def check_ids(checks, train_gpt2, title, text, path, shard, string, ids):
    """Compares the ids of a text, which is `string`, by the tokenizer `path` in the libraries and here."""
    ours = tokenizers.Tokenizer.from_file(path)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=path)
    for library, opened in ("tokenizers", ours.encode(string).ids), ("transformers", fast.encode(string)):
        checks.check(f"ids of {title} in {library}", opened == ids, first_difference(opened, ids))
    decoded = ours.decode(ids, skip_special_tokens=False)
    checks.check(f"text of {title} decoded", decoded == string, first_difference(decoded, string))
    if checks.run(f"tokenize, {title}", [train_gpt2, "tokenize", text, shard, "--tokenizer", path]) is not None:
        ids_here = ids_of_shard(shard)
        checks.check(f"ids of {title} here", ids_here == ids, first_difference(ids_here, ids))


def check_superwords(checks, directory, train_gpt2, name, data, vocab):
    """Compares the ids that a tokenizer with superwords gives. The libraries cannot learn one."""
    base = os.path.join(directory, f"superwords_{vocab}")
    text, path = f"{base}.txt", f"{base}.json"
    with open(text, "wb") as f:
        f.write(data)
    title = f"{name}, {vocab} tokens with superwords"
    command = [train_gpt2, "tokenize", "--train", text, "--vocab", str(vocab), "--superwords", path]
    if checks.run(f"tokenize --train, {title}", command) is not None:
        string = data.decode("utf-8", errors="replace")
        ids = tokenizers.Tokenizer.from_file(path).encode(string).ids
        check_ids(checks, train_gpt2, title, text, path, f"{base}.bin", string, ids)


def check_training(checks, directory, train_gpt2, data, kind, vocab):
    """Checks a run that learns its tokenizer: from the first nine tenths of the text only."""
    text, out = os.path.join(directory, "run.txt"), os.path.join(directory, kind)
    with open(text, "wb") as f:
        f.write(data)
    shape = "--layers 1 --heads 1 --channels 16 --context 32 --batch 1 --seq 32 --steps 1 --eval-every 0 --sample-every 0"
    command = [train_gpt2, "--data", text, "--out", out, "--tokenizer", f"{kind}:{vocab}", *shape.split()]
    if checks.run(f"train with {kind}:{vocab}", command) is None:
        return
    part = data[: int(0.9 * len(data))]
    ids = ids_of_shard(os.path.join(out, "data/train.bin"))
    if kind == "bpe":
        theirs = learn(part, vocab, documents=True).encode(part.decode()).ids
        checks.check("ids of the training part", ids == theirs, "others")
    opened = transformers.AutoTokenizer.from_pretrained(os.path.join(out, "latest"), local_files_only=True)
    found = opened.encode(part.decode())
    checks.check(f"ids of the checkpoint of {kind} in AutoTokenizer", found == ids, first_difference(found, ids))
    checks.check(f"end of text of the checkpoint of {kind}", (opened.eos_token, opened.eos_token_id) == (END, 0), opened.eos_token)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=ROOT, metavar="DIR", help="where train_gpt2 is")
    parser.add_argument("--seed", type=int, default=0, help="of the odd text (default 0)")
    parser.add_argument("--text", metavar="FILE", help="compare 8192 tokens of this text only; tokenizers may take minutes")
    parser.add_argument("--golden", action="store_true", help="only write the merges for bpe_trainer_test")
    args = parser.parse_args()
    if args.golden:
        write_golden(GOLDEN)
        return
    train_gpt2 = os.path.join(os.path.abspath(args.programs), "train_gpt2")
    transformers.logging.set_verbosity_error()
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        if args.text:
            with open(args.text, "rb") as f:
                check_text(checks, directory, train_gpt2, os.path.basename(args.text), f.read(), 8192)
        else:
            with open(GOLDEN, encoding="utf-8") as f:
                committed = [case["merges"] for case in json.load(f)["cases"]]
            fresh = [case["merges"] for case in golden_cases()]
            checks.check("the committed merges", committed == fresh, "run scripts/compare_tokenizers.py --golden")
            with open(SHAKESPEARE, "rb") as f:
                shakespeare = f.read()
            odd = odd_text(np.random.RandomState(args.seed), 20_000, broken=500)
            for vocab in 512, 1024, 4096, 8192:
                check_text(checks, directory, train_gpt2, "Tiny Shakespeare", shakespeare, vocab)
            for documents in True, False:
                check_text(checks, directory, train_gpt2, "odd text", odd, 1024, documents)
            check_superwords(checks, directory, train_gpt2, "Tiny Shakespeare", shakespeare, 4096)
            check_superwords(checks, directory, train_gpt2, "odd text", odd, 1024)
            for kind in "bpe", "superbpe":
                check_training(checks, directory, train_gpt2, shakespeare, kind, 512)
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()

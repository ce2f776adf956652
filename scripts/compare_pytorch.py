#!/usr/bin/env python3
"""Compares the built programs with PyTorch, on newly made numbers:

    the committed dump is what this PyTorch computes;
    ./test_gpt2 passes on dumps of random shapes, with dropout too, and on llm.c pairs, and fails when one number in them
    is wrong;
    a checkpoint of ./train_gpt2 opens in transformers, with the same tokens and the same loss, also where the model has
    more rows than its tokenizer has tokens, and where it has no tokenizer and is trained on ids that are no text;
    tokens that were added to a tokenizer come out of ./train_gpt2 with their ids;
    eval's answers to multiple-choice examples and its loss in overlapping windows are transformers';
    a checkpoint in nanoGPT's format, of characters, has the same loss after scripts/convert_nanogpt.py.

Exit status: 0 if all passed, 1 if a check failed.
"""

import argparse
import contextlib
import filecmp
import io
import json
import os
import pickle
import re
import shutil
import sys
import tempfile

import numpy as np
import safetensors.numpy
import tiktoken
import torch
import torch.nn.functional as F
import transformers

import compare_dumps
import dump_reference
from checks import ROOT, Checks

COMMITTED = os.path.join(ROOT, "dev/test/data/gpt2_reference.safetensors")


def dump(*options):
    with contextlib.redirect_stdout(io.StringIO()):
        dump_reference.main([str(option) for option in options])


def options_of(shape):
    return [word for key, value in shape.items() for word in (f"--{key}", value)]


# ---- (a) the committed dump ------------------------------------------------------------------------------------------


def check_committed(checks, directory):
    fresh = os.path.join(directory, "fresh.safetensors")
    dump(fresh)
    passed, failed = compare_dumps.compare(COMMITTED, fresh, 1e-9)
    checks.check(f"the committed dump, {len(passed)} tensors and settings", not failed, "\n".join(failed))


# ---- (b) fresh dumps of odd shapes -----------------------------------------------------------------------------------


def random_shape(random):
    while True:
        heads, head_size = int(random.randint(1, 6)), int(random.randint(1, 17))
        # LayerNorm of a few channels turns rounding into large differences, in PyTorch as well as here.
        if heads * head_size >= 6:
            break
    seq = int(random.randint(1, 41))
    return {
        "layers": int(random.randint(1, 4)),
        "heads": heads,
        "channels": heads * head_size,
        "vocab": int(random.randint(2, 301)),
        "context": seq + int(random.randint(0, 6)),
        "batch": int(random.randint(1, 4)),
        "seq": seq,
        "seed": int(random.randint(0, 10000)),
    }


def check_dumps(checks, directory, test_gpt2, random):
    shapes = [random_shape(random) for _ in range(5)]
    shapes[0] |= {"seq": 1}
    shapes[1] |= {"vocab": 2}
    shapes[2] |= {"dropout": 0.1}
    shapes[3] |= {"dropout": 0.5}
    for i, shape in enumerate(shapes):
        path = os.path.join(directory, f"dump{i}.safetensors")
        dump(path, *options_of(shape))
        name = " ".join(f"{key} {value}" for key, value in shape.items())
        checks.run(f"test_gpt2 --dump, {name}", [test_gpt2, "--dump", path])

    # The test must notice one wrong number, and NaN.
    path = os.path.join(directory, "wrong.safetensors")
    with safetensors.safe_open(COMMITTED, "np") as f:
        metadata = f.metadata()
    for name in ("act.logsumexp.1", "dact.fch.0", "grad.attprojw", "final.ln2w"):
        for value in (1e-3, np.nan):
            tensors = safetensors.numpy.load_file(COMMITTED)
            tensors[name].reshape(-1)[-1] += value * np.abs(tensors[name]).max()
            safetensors.numpy.save_file(tensors, path, metadata)
            what = "NaN" if np.isnan(value) else "a number that is wrong"
            checks.run(f"test_gpt2 --dump fails on {what} in {name}", [test_gpt2, "--dump", path], status=1)


# ---- (c) llm.c's files -----------------------------------------------------------------------------------------------


def check_llmc(checks, directory, test_gpt2):
    model, state = os.path.join(directory, "model.bin"), os.path.join(directory, "state.bin")
    command = [test_gpt2, "--checkpoint", model, "--state", state]

    wide = {"layers": 2, "heads": 12, "channels": 768, "vocab": 50257, "context": 64, "batch": 1, "seq": 32}
    for name, shape in {"GPT-2's width": wide, "a small shape": {}}.items():
        for path in (model, state):
            if os.path.exists(path):
                os.remove(path)
        dump("--llmc", model, state, *options_of(shape))
        checks.run(f"test_gpt2 on an llm.c pair of {name}", command)

    with open(state, "r+b") as f:  # the last gradient, lnfb's
        f.seek(-4, os.SEEK_END)
        f.write(np.array([np.nan], "<f4").tobytes())
    checks.run("test_gpt2 on an llm.c pair fails on NaN in a gradient", command, status=1)


# ---- (d) a checkpoint in transformers --------------------------------------------------------------------------------


def gpt2_symbols():
    """The characters that stand for bytes in GPT-2's files, in the order of their ids, each with its byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [b for b in range(256) if b not in printable]
    return {chr(b) if b in printable else chr(256 + i - len(printable)): b for i, b in enumerate(order)}


def gpt2_merges(vocab_bpe):
    with open(vocab_bpe, encoding="utf-8") as f:
        return [tuple(line.split(" ")) for line in f.read().split("\n")[1:] if line]


def gpt2_encoding(vocab_bpe):
    """tiktoken's gpt2, built from the merges, because tiktoken would download its files."""
    byte_of = gpt2_symbols()
    ranks = {bytes([b]): i for i, b in enumerate(byte_of.values())}
    for left, right in gpt2_merges(vocab_bpe):
        ranks[bytes(byte_of[c] for c in left + right)] = len(ranks)
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks)})


def tiny_text(random):
    words = "the a of in at it's we'll GPT 2 1024 café naïve Straße 漢字 🙂 -- train  loss\n step, down.\n\n".split(" ")
    return " ".join(words[i] for i in random.randint(0, len(words), 3000))


def mean_loss(model, ids, context):
    """The mean loss over all ids, in windows that do not overlap; the last one may be shorter."""
    total = 0.0
    with torch.no_grad():
        for begin in range(0, len(ids) - 1, context):
            window = torch.tensor([ids[begin : begin + context + 1]])
            logits = model(window[:, :-1], use_cache=False).logits
            total += F.cross_entropy(logits[0], window[0, 1:], reduction="sum").item()
    return total / (len(ids) - 1)


def open_in_transformers(directory):
    return transformers.GPT2LMHeadModel.from_pretrained(
        directory, local_files_only=True, dtype=torch.float64, attn_implementation="eager", output_loading_info=True
    )


def check_loss(checks, name, printed, model, ids, context):
    """Checks that the loss that eval printed (None if it failed) is transformers' loss on these ids."""
    if printed is None:
        return
    found = re.search(r"^loss (\d+\.\d+)", printed, re.MULTILINE)
    if not checks.check(f"eval prints its loss, {name}", found, f"no line 'loss 5.270009' in:\n{printed}"):
        return
    ours, pytorch = float(found[1]), mean_loss(model.eval(), ids, context)
    why = f"{ours} here, {pytorch:.6f} in transformers"
    checks.check(f"eval's loss is transformers', {name}", abs(ours - pytorch) <= 1e-5, why)


def check_checkpoint(checks, directory, train_gpt2, tokenizer, text, ids, vocab=0):
    """Checks a run on text. `vocab` is the model's number of rows; 0 means one per token."""
    title = f"{tokenizer} with {vocab} rows" if vocab else tokenizer
    data = os.path.join(directory, f"{title}.txt")
    with open(data, "w", encoding="utf-8", newline="") as f:
        f.write(text)
    out = os.path.join(directory, f"{title} out")
    context = 32
    shape = {"layers": 2, "heads": 2, "channels": 32, "context": context, "batch": 2, "seq": context}
    schedule = {"total-batch": 2 * context, "steps": 10, "warmup": 2, "lr": "3e-3", "seed": 1}
    never = {"eval-every": 0, "sample-every": 0, "save-every": 10}
    options = options_of(
        {"data": data, "tokenizer": tokenizer, "vocab": vocab, **shape, **schedule, **never, "out": out}
    )
    if checks.run(f"train_gpt2 --tokenizer {title}", [train_gpt2, "train", *map(str, options)]) is None:
        return
    checkpoint = os.path.join(out, "latest")
    printed = checks.run(f"eval, {title}", [train_gpt2, "eval", "--from", checkpoint, "--data", data])

    name = f"the checkpoint in transformers, {title}"
    try:
        model, loading = open_in_transformers(checkpoint)
        theirs = transformers.AutoTokenizer.from_pretrained(checkpoint, local_files_only=True).encode(text)
    except Exception as e:  # any error of transformers about the directory is a failed check
        checks.check(name, False, f"{type(e).__name__}: {e}")
        return
    checks.check(name, not any(loading.values()), loading)
    checks.check(f"the checkpoint's tokenizer in transformers, {title}", theirs == ids, first_difference(theirs, ids))
    rows = model.transformer.wte.weight.shape[0]
    checks.check(f"the checkpoint's rows in transformers, {title}", vocab in (0, rows), rows)
    check_loss(checks, title, printed, model, ids, context)


def first_difference(found, expected):
    for i, (a, b) in enumerate(zip(found, expected)):
        if a != b:
            return f"token {i}: found {a}, expected {b}"
    return f"found {len(found)} tokens, expected {len(expected)}"


def ids_of_shard(path):
    with open(path, "rb") as f:
        return np.frombuffer(f.read()[1024:], dtype="<u2").tolist()


ADDED_TEXT = "<|user|>hi my word<|pad|>"
ADDED_IDS = [50258, 5303, 220, 50259, 50257]


def make_added_tokens(directory, vocab_bpe):
    """Makes GPT-2's tokenizer with a padding token, a special token and a word, and a model with as many rows."""
    merges = gpt2_merges(vocab_bpe)
    vocab = {token: i for i, token in enumerate([*gpt2_symbols(), *(a + b for a, b in merges), "<|endoftext|>"])}
    tokenizer = transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
    tokenizer.add_special_tokens({"pad_token": "<|pad|>", "additional_special_tokens": ["<|user|>"]})
    tokenizer.add_tokens(["my word"])
    tokenizer.model_max_length = 77
    tokenizer.save_pretrained(directory)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_layer=1, n_head=1, n_embd=16, n_positions=32)
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)
    return vocab, merges


def make_slow_files(directory, fast, vocab, merges):
    """Makes the same tokenizer in the files of transformers 4's slow tokenizer."""
    shutil.copytree(fast, directory)
    os.remove(os.path.join(directory, "tokenizer.json"))
    os.remove(os.path.join(directory, "tokenizer_config.json"))
    names = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>", "additional_special_tokens": ["<|user|>"]}
    files = {
        "vocab.json": vocab,
        "added_tokens.json": {"<|pad|>": 50257, "<|user|>": 50258, "my word": 50259},
        "special_tokens_map.json": names,
        "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", **names},
    }
    for name, value in files.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    with open(os.path.join(directory, "merges.txt"), "w", encoding="utf-8") as f:
        f.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))


def check_added_tokens(checks, directory, train_gpt2, vocab_bpe):
    fast, slow, data = (os.path.join(directory, name) for name in ("added", "added_slow", "added.txt"))
    make_slow_files(slow, fast, *make_added_tokens(fast, vocab_bpe))
    with open(data, "w", encoding="utf-8") as f:
        f.write(ADDED_TEXT)
    long = os.path.join(directory, "added_long.txt")
    with open(long, "w", encoding="utf-8") as f:
        f.write((ADDED_TEXT + " and so on<|endoftext|>\n") * 100)
    for source in (fast, slow):
        name = os.path.basename(source)
        shard, converted, out = f"{source}.bin", f"{source}_converted", f"{source}_out"
        never = {"eval-every": 0, "sample-every": 0, "steps": 1, "seq": 16, "batch": 2}
        options = options_of({"init": source, "data": long, "out": out, **never})
        commands = {
            "tokenize": ["tokenize", data, shard, "--tokenizer", source],
            "convert": ["convert", source, converted],
            "train --init": ["train", *map(str, options)],
        }
        done = [checks.run(f"{title}, {name}", [train_gpt2, *command]) for title, command in commands.items()]
        if None in done:
            continue
        ids = ids_of_shard(shard)
        checks.check(f"the ids of {name}", ids == ADDED_IDS, first_difference(ids, ADDED_IDS))
        for written in (source, converted, os.path.join(out, "latest")):
            where = f"{os.path.relpath(written, directory)} in transformers"
            tokenizer = transformers.AutoTokenizer.from_pretrained(written, local_files_only=True)
            ids = tokenizer.encode(ADDED_TEXT)
            checks.check(f"the ids of {where}", ids == ADDED_IDS, first_difference(ids, ADDED_IDS))
            checks.check(f"the padding token of {where}", tokenizer.pad_token == "<|pad|>", tokenizer.pad_token)
            for file in sorted(os.listdir(source)) if written != source else []:
                if "token" in file or file in ("vocab.json", "merges.txt"):
                    same = filecmp.cmp(os.path.join(source, file), os.path.join(written, file), shallow=False)
                    checks.check(f"{file} of {where} as it was", same, "another")


def check_checkpoints(checks, directory, train_gpt2, random):
    text = tiny_text(random)
    check_checkpoint(checks, directory, train_gpt2, "byte", text, list(text.encode()))
    check_checkpoint(checks, directory, train_gpt2, "byte", text, list(text.encode()), vocab=320)
    merges = os.path.join(ROOT, "data/vocab.bpe")
    if checks.check("data/vocab.bpe", os.path.isfile(merges), "not there; run scripts/get_data.sh"):
        text = text[: len(text) // 2] + "<|endoftext|>" + text[len(text) // 2 :]
        ids = gpt2_encoding(merges).encode(text, allowed_special="all")
        check_checkpoint(checks, directory, train_gpt2, "gpt2", text, ids)
        check_added_tokens(checks, directory, train_gpt2, merges)


# ---- (e) ids that are not text ---------------------------------------------------------------------------------------


def write_shard(path, ids):
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(ids)
    with open(path, "wb") as f:
        f.write(header.tobytes() + np.array(ids, "<u2").tobytes())


def check_greedy(checks, train_gpt2, checkpoint, model, context):
    """Checks that generate writes the ids of transformers' greedy search, up to the model's context."""
    prompt = [7, 3, 250]
    for penalty in (1.0, 1.3):
        options = {"from": checkpoint, "prompt-ids": " ".join(map(str, prompt)), "tokens": context - len(prompt)}
        greedy = options_of({**options, "temperature": 0, "repetition-penalty": penalty})
        name = f"greedy ids, repetition penalty {penalty}"
        printed = checks.run(f"generate, {name}", [train_gpt2, "generate", *map(str, greedy)])
        with torch.no_grad():
            theirs = model.generate(
                torch.tensor([prompt]), do_sample=False, max_length=context, repetition_penalty=penalty, eos_token_id=None
            )[0].tolist()
        ours = [int(word) for word in (printed or "").split("\n")[0].split()]
        checks.check(f"{name} are transformers'", ours == theirs, first_difference(ours, theirs))


def check_ids(checks, directory, train_gpt2, random):
    """Checks a transformers model without a tokenizer: evaluated on a shard, trained on it, and opened again."""
    context, vocab = 32, 300
    ids = random.randint(0, vocab, 1000).tolist()
    shard, theirs, ours = (os.path.join(directory, name) for name in ("ids.bin", "theirs", "ours"))
    write_shard(shard, ids)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=vocab, n_positions=context)
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(theirs)
    printed = checks.run("eval, ids", [train_gpt2, "eval", "--from", theirs, "--data", shard])
    check_loss(checks, "ids", printed, model.double(), ids, context)
    check_greedy(checks, train_gpt2, theirs, model, context)

    options = options_of({"init": theirs, "data": shard, "seq": context, "steps": 2, "warmup": 0, "out": ours})
    if checks.run("train_gpt2 --init, ids", [train_gpt2, "train", *map(str, options)]) is None:
        return
    checkpoint = os.path.join(ours, "latest")
    printed = checks.run("eval of the checkpoint, ids", [train_gpt2, "eval", "--from", checkpoint, "--data", shard])
    trained, loading = open_in_transformers(checkpoint)
    checks.check("the checkpoint in transformers, ids", not any(loading.values()), loading)
    check_loss(checks, "ids after training", printed, trained, ids, context)


# ---- (f) multiple choice and overlapping windows ---------------------------------------------------------------------


def losses_of(model, tokens):
    """The loss of each token but the first."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]]), use_cache=False).logits[0]
    return F.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none"), logits.argmax(-1)


def score(model, context, ending, seq):
    """The sum and the mean of an ending's losses, and whether it is the greedy prediction, after at most seq tokens."""
    tokens = (context + ending)[-seq - 1 :]
    count = min(len(ending), len(tokens) - 1)
    losses, likeliest = losses_of(model, tokens)
    sum = losses[-count:].sum().item()
    return sum, sum / count, likeliest[-count:].tolist() == tokens[-count:]


def strided_loss(model, ids, seq, stride):
    """As in Hugging Face's guide to perplexity: only the tokens that no earlier window had count."""
    total, scored = 0.0, 1
    for begin in range(0, len(ids) - 1, stride):
        losses, _ = losses_of(model, ids[begin : begin + seq + 1])
        total += losses[scored - begin - 1 :].sum().item()
        scored = begin + 1 + len(losses)
        if scored == len(ids):
            return total / (len(ids) - 1)


def write_llmc_examples(path, examples):
    """As llm.c's data_common.write_evalfile. An example is its context, its endings and its label."""
    streams = []
    for i, (context, endings, label) in enumerate(examples):
        stream = [65535, 0, i, label, len(endings), len(context), *context]
        for ending in endings:
            stream += [len(ending), *ending]
        stream[1] = 2 * len(stream)
        streams.append(stream)
    header = np.zeros(256, "<i4")
    header[:4] = 20240522, 1, len(streams), max(stream[1] for stream in streams)
    with open(path, "wb") as f:
        f.write(header.tobytes() + b"".join(np.array(stream, "<u2").tobytes() for stream in streams))


def write_lines(path, lines):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)


def check_hellaswag(checks, directory, command, model, encode, words, random, seq):
    """Labels that are transformers' own answers: eval must find all of them, by the sum and by the mean."""
    some = lambda most: " ".join(words[i] for i in random.randint(0, len(words), random.randint(1, most)))
    texts = [(some(40), [some(8) for _ in range(4)]) for _ in range(24)]
    examples = [(encode(ctx), [encode(" " + ending) for ending in endings]) for ctx, endings in texts]
    scores = [[score(model, context, ending, seq) for ending in endings] for context, endings in examples]
    answers = {name: [int(np.argmin([s[i] for s in row])) for row in scores] for i, name in enumerate(("sum", "mean"))}
    checks.check("the two rules differ on some examples", answers["sum"] != answers["mean"], answers)
    for name, labels in answers.items():
        path = os.path.join(directory, f"by_{name}")
        lines = [{"ind": i, "ctx": t[0], "endings": t[1], "label": labels[i]} for i, t in enumerate(texts)]
        write_lines(path + ".jsonl", lines)
        write_llmc_examples(path + ".bin", [(*example, label) for example, label in zip(examples, labels)])
        right = {rule: np.mean([a == b for a, b in zip(labels, theirs)]) for rule, theirs in answers.items()}
        for file in (path + ".jsonl", path + ".bin"):
            title = f"{os.path.basename(file)} of 24 examples"
            printed = checks.run(f"eval --choices, {title}", [*command, "--choices", file])
            found = re.search(r"summed log-likelihood (\S+) .*mean log-likelihood (\S+) ", printed or "")
            expected = (f"{right['sum']:.4f}", f"{right['mean']:.4f}")
            checks.check(f"every answer is transformers', {title}", found and found.groups() == expected, printed)


def check_lambada(checks, directory, command, model, encoding, words, random, seq):
    """Last words, every second one of which is the model's own."""
    lines, scores = [], []
    while len(lines) < 24:
        text = " ".join(words[i] for i in random.randint(0, len(words), random.randint(2, 40)))
        context, word = encoding.encode(text), " " + words[random.randint(len(words))]
        if len(lines) % 2 == 0:
            _, likeliest = losses_of(model, (context + [0])[-seq - 1 :])
            word = encoding.decode([likeliest[-1].item()])
            if not re.fullmatch(" [A-Za-z]+", word):
                continue
        lines.append({"text": text + word})
        scores.append(score(model, context, encoding.encode(word), seq))
    path = os.path.join(directory, "lambada.jsonl")
    write_lines(path, lines)
    printed = checks.run("eval --choices, 24 last words", [*command, "--choices", path])
    found = re.search(r"last word: accuracy (\S+) .* perplexity (\S+) ", printed or "")
    accuracy, perplexity = np.mean([s[2] for s in scores]), np.exp(np.mean([s[0] for s in scores]))
    ok = found and found[1] == f"{accuracy:.4f}" and abs(float(found[2]) / perplexity - 1) <= 1e-5
    checks.check("every last word is transformers'", ok, f"{printed}, {accuracy} and {perplexity} in transformers")
    checks.check("some last words are greedy", 0.4 < accuracy < 0.9, accuracy)


def check_choices(checks, directory, train_gpt2, random):
    """Evaluates a random model with GPT-2's tokens; some examples are longer than what it sees."""
    merges = os.path.join(ROOT, "data/vocab.bpe")
    if not os.path.isfile(merges):
        return  # check_checkpoints reports it
    encoding, seq = gpt2_encoding(merges), 32
    torch.set_num_threads(1)  # more cost time in so many small forward passes
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=seq)
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:  # biases would make one token the likeliest everywhere
            torch.nn.init.normal_(parameter, std=0.5)
    source = os.path.join(directory, "choices")
    model.save_pretrained(source)
    model.double()
    text = tiny_text(random)
    words = sorted(set(re.findall("[a-z]+", text)))
    command = [train_gpt2, "eval", "--from", source, "--tokenizer", "gpt2"]
    check_hellaswag(checks, directory, command, model, encoding.encode, words, random, seq)
    check_lambada(checks, directory, command, model, encoding, words, random, seq)

    data = os.path.join(directory, "strided.txt")
    with open(data, "w", encoding="utf-8", newline="") as f:
        f.write(text[:1000])
    for seq, stride in (32, 12), (20, 19):
        options = ["--data", data, "--seq", str(seq), "--stride", str(stride)]
        printed = checks.run(f"eval --seq {seq} --stride {stride}", [*command, *options])
        found = re.search(r"^loss (\d+\.\d+)", printed or "", re.MULTILINE)
        expected = strided_loss(model, encoding.encode(text[:1000]), seq, stride)
        ok = found and abs(float(found[1]) - expected) <= 1e-5 * expected
        checks.check(f"the loss is transformers', stride {stride}", ok, f"{printed}, {expected} in transformers")


# ---- (g) nanoGPT's checkpoints ---------------------------------------------------------------------------------------


def check_nanogpt(checks, directory, train_gpt2, random):
    """Writes a model as nanoGPT does: (out, in) matrices, perhaps torch.compile's prefix, perhaps no biases."""
    text = tiny_text(random)[:1500] + "Fiancé, 20 €: ü\n"
    stoi = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = [stoi[character] for character in text]
    meta, data = os.path.join(directory, "meta.pkl"), os.path.join(directory, "characters.txt")
    with open(meta, "wb") as f:
        pickle.dump({"vocab_size": len(stoi), "itos": {i: c for c, i in stoi.items()}, "stoi": stoi}, f)
    with open(data, "w", encoding="utf-8", newline="") as f:
        f.write(text)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16}
    for prefix, bias in ("", True), ("_orig_mod.", False):
        torch.manual_seed(2)
        config = transformers.GPT2Config(**sizes, n_positions=24, vocab_size=len(stoi))
        model = transformers.GPT2LMHeadModel(config).eval()
        state = {}
        for name, tensor in model.state_dict().items():
            torch.nn.init.normal_(tensor, std=0.2) if bias or not name.endswith("bias") else tensor.zero_()
            if bias or not name.endswith("bias"):
                state[prefix + name] = tensor.T.contiguous() if ".h." in name and tensor.dim() == 2 else tensor
        checkpoint, converted = os.path.join(directory, "ckpt.pt"), os.path.join(directory, f"nanogpt-{bias}")
        arguments = {**sizes, "block_size": 24, "bias": bias, "vocab_size": len(stoi), "dropout": 0.0}
        torch.save({"model": state, "model_args": arguments, "iter_num": 1}, checkpoint)
        script = os.path.join(ROOT, "scripts/convert_nanogpt.py")
        title = f"nanoGPT's checkpoint, bias={bias}"
        if checks.run(title, [sys.executable, script, checkpoint, converted, "--meta", meta]) is None:
            continue
        printed = checks.run(f"eval of {title}", [train_gpt2, "eval", "--from", converted, "--data", data])
        check_loss(checks, title, printed, model.double(), ids, 24)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=ROOT, metavar="DIR", help="where train_gpt2 and test_gpt2 are")
    parser.add_argument("--seed", type=int, default=0, help="of the random shapes and the text (default 0)")
    args = parser.parse_args()
    programs = os.path.abspath(args.programs)
    train_gpt2, test_gpt2 = os.path.join(programs, "train_gpt2"), os.path.join(programs, "test_gpt2")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    checks = Checks()
    random = np.random.RandomState(args.seed)
    with tempfile.TemporaryDirectory() as directory:
        check_committed(checks, directory)
        check_dumps(checks, directory, test_gpt2, random)
        check_llmc(checks, directory, test_gpt2)
        check_checkpoints(checks, directory, train_gpt2, random)
        check_ids(checks, directory, train_gpt2, random)
        check_choices(checks, directory, train_gpt2, random)
        check_nanogpt(checks, directory, train_gpt2, random)
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()

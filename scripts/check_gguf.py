#!/usr/bin/env python3
"""Compares GGUF files with llama.cpp's Python package, gguf:

    files that ./train_gpt2 convert writes have the package's values, bit for bit, and the model's keys and tokens;
    files that the package writes become the same model and tokenizer again.

Exit status: 0 if all passed, 1 if a check failed.
"""

import argparse
import json
import os
import sys
import tempfile

import gguf
import numpy as np
import safetensors.numpy

from checks import ROOT, Checks

TYPES = {name: gguf.GGMLQuantizationType[name.upper()] for name in ("f32", "f16", "bf16", "q8_0")}
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
CONTEXT, CHANNELS, LAYERS, HEADS = 24, 64, 2, 2

# Hugging Face's name of each tensor, without "transformer.", and llama.cpp's; # stands for the block's number.
TENSORS = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "h.#.ln_1": "blk.#.attn_norm",
    "h.#.attn.c_attn": "blk.#.attn_qkv",
    "h.#.attn.c_proj": "blk.#.attn_output",
    "h.#.ln_2": "blk.#.ffn_norm",
    "h.#.mlp.c_fc": "blk.#.ffn_up",
    "h.#.mlp.c_proj": "blk.#.ffn_down",
    "ln_f": "output_norm",
}


def llama_name(name):
    stem, kind = name.removeprefix("transformer.").rsplit(".", 1)
    parts = stem.split(".")
    number = parts[1] if parts[0] == "h" else ""
    return TENSORS[".".join(["h", "#", *parts[2:]]) if number else stem].replace("#", number) + "." + kind


def expected_tensors(directory):
    """The model's tensors by llama.cpp's names: matrices are (out,in), which Hugging Face's blocks have transposed."""
    tensors = safetensors.numpy.load_file(os.path.join(directory, "model.safetensors"))
    return {
        llama_name(name): np.ascontiguousarray(x.T if ".h." in name and x.ndim == 2 else x)
        for name, x in tensors.items()
    }


def type_of(name, x, type_name):
    """The type of a tensor in a file of this type."""
    return TYPES["f32" if x.ndim == 1 or name == "position_embd.weight" else type_name]


def expected_tokenizer(directory, rows):
    """The tokens, types, merges, end of text and pre-tokenizer of a tokenizer.json, as llama.cpp's converter names them."""
    with open(os.path.join(directory, "tokenizer.json"), encoding="utf-8") as f:
        file = json.load(f)
    tokens = [f"[PAD{i}]" for i in range(rows)]
    types = [gguf.TokenType.UNUSED] * rows
    for token, i in file["model"]["vocab"].items():
        tokens[i], types[i] = token, gguf.TokenType.NORMAL
    for added in file["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    end = tokens.index("<|endoftext|>") if "<|endoftext|>" in tokens else tokens.index("ÿ")
    pre = "superbpe" if file["pre_tokenizer"]["type"] == "Sequence" else "gpt-2"
    return tokens, [int(t) for t in types], file["model"]["merges"] or ["ÿ ÿ"], end, pre


def expected_keys(directory, rows, type_name):
    tokens, types, merges, end, pre = expected_tokenizer(directory, rows)
    keys = {
        "general.architecture": "gpt2",
        "general.file_type": FILE_TYPES[type_name],
        "general.quantization_version": 2,
        "gpt2.block_count": LAYERS,
        "gpt2.context_length": CONTEXT,
        "gpt2.embedding_length": CHANNELS,
        "gpt2.feed_forward_length": 4 * CHANNELS,
        "gpt2.attention.head_count": HEADS,
        "gpt2.attention.layer_norm_epsilon": float(np.float32(1e-5)),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
    }
    unused = [i for i, t in enumerate(types) if t == gguf.TokenType.UNUSED]
    return keys | ({"tokenizer.ggml.suppress_tokens": unused} if unused else {})


def check_written(checks, directory, path, type_name):
    """Checks a file of the program's against the model that it was made of."""
    name, expected = os.path.basename(path), expected_tensors(directory)
    reader = gguf.GGUFReader(path)
    found = {t.name: t for t in reader.tensors}
    if not checks.check(f"names in {name}", found.keys() == expected.keys(), found.keys() ^ expected.keys()):
        return
    wrong = []
    for tensor, x in expected.items():
        t, quantization = found[tensor], type_of(tensor, x, type_name)
        bits = gguf.quants.quantize(x, quantization)
        same = t.tensor_type == quantization and np.array_equal(t.data.view(np.uint8), bits.view(np.uint8))
        back = gguf.quants.dequantize(t.data, t.tensor_type)
        error = np.abs(back - x).max() / np.abs(x).max()
        if not same or back.shape != x.shape or error > 0.005:
            wrong.append(f"{tensor}, error {error}")
    checks.check(f"bits of the {len(expected)} tensors of {name}", not wrong, wrong)
    keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    wanted = expected_keys(directory, expected["token_embd.weight"].shape[0], type_name)
    wrong = [
        f"{key}: found {str(keys.get(key))[:200]}, expected {str(wanted.get(key))[:200]}"
        for key in keys.keys() | wanted.keys()
        if keys.get(key) != wanted.get(key)
    ]
    checks.check(f"the {len(wanted)} keys of {name}", not wrong, "\n".join(wrong))


def write_with_package(path, directory, type_name):
    tensors = expected_tensors(directory)
    tokens, types, merges, end, pre = expected_tokenizer(directory, tensors["token_embd.weight"].shape[0])
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_name("a model of another program")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(CHANNELS)
    writer.add_feed_forward_length(4 * CHANNELS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(FILE_TYPES[type_name])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    for name, x in tensors.items():
        quantization = type_of(name, x, type_name)
        writer.add_tensor(name, gguf.quants.quantize(x, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_read(checks, directory, path, type_name, train_gpt2, text, ids):
    """Checks that the program reads a file of the package's: its values, and the ids that its tokenizer gives."""
    name, back, shard = os.path.basename(path), f"{path}.back", f"{path}.bin"
    write_with_package(path, directory, type_name)
    if checks.run(f"convert {name}", [train_gpt2, "convert", path, back]) is None:
        return
    found, wrong = expected_tensors(back), []
    for tensor, x in expected_tensors(directory).items():
        quantization = type_of(tensor, x, type_name)
        rounded = gguf.quants.dequantize(gguf.quants.quantize(x, quantization), quantization)
        if not np.array_equal(found[tensor], rounded):
            wrong.append(tensor)
    checks.check(f"values from {name}", not wrong, wrong)
    for tokenizer in (path, back):
        if checks.run(f"tokenize with {os.path.basename(tokenizer)}",
                      [train_gpt2, "tokenize", text, shard, "--tokenizer", tokenizer]) is not None:
            same = ids_of_shard(shard) == ids
            checks.check(f"ids of {os.path.basename(tokenizer)}", same, "others than before")
            os.remove(shard)


def ids_of_shard(path):
    with open(path, "rb") as f:
        return np.frombuffer(f.read()[1024:], dtype="<u2").tolist()


def make_models(checks, directory, train_gpt2, text):
    """Models of each kind of vocabulary, as train_gpt2 saves them, by name."""
    merges = os.path.join(directory, "merges.txt")
    with open(os.path.join(ROOT, "data/vocab.bpe"), encoding="utf-8") as f:
        lines = f.readlines()[:301]
    with open(merges, "w", encoding="utf-8") as f:
        f.writelines(lines)
    kinds = {
        "byte": ["byte"],
        "padded": ["byte", "--vocab", "300"],
        "gpt2": ["gpt2"],
        "own": [merges],
        "added": [merges, "--vocab", "576"],
        "learned": ["bpe:280"],
        "superwords": ["superbpe:280"],
    }
    shape = ["--layers", LAYERS, "--heads", HEADS, "--channels", CHANNELS, "--context", CONTEXT, "--seq", CONTEXT]
    never = ["--eval-every", 0, "--sample-every", 0, "--steps", 1, "--batch", 1]
    models = {}
    for name, tokenizer in kinds.items():
        out = os.path.join(directory, name)
        options = map(str, ["--data", text, "--out", out, *shape, *never, "--tokenizer", *tokenizer])
        if checks.run(f"train {name}", [train_gpt2, "train", *options]) is not None:
            models[name] = os.path.realpath(os.path.join(out, "latest"))
    if "added" in models:
        path = os.path.join(models["added"], "tokenizer.json")
        with open(path, encoding="utf-8") as f:
            file = json.load(f)
        for content, special in (("<|user|>", True), ("my word", False)):
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            added = {"id": len(file["model"]["vocab"]), "content": content, **flags, "special": special}
            file["added_tokens"].append(added | {"normalized": not special})
            file["model"]["vocab"][content] = added["id"]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(file, f)
    return models


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=ROOT, metavar="DIR", help="where train_gpt2 is")
    train_gpt2 = os.path.join(os.path.abspath(parser.parse_args().programs), "train_gpt2")
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        text = os.path.join(directory, "text.txt")
        with open(text, "w", encoding="utf-8") as f:
            f.write("In the theatre, all 1234 cafés: it's my word.\n\n<|user|>漢字 🙂<|endoftext|>the end\n" * 40)
        for name, model in make_models(checks, directory, train_gpt2, text).items():
            shard = os.path.join(directory, f"{name}.bin")
            if checks.run(f"tokenize with {name}", [train_gpt2, "tokenize", text, shard, "--tokenizer", model]) is None:
                continue
            for type_name in TYPES:
                path = os.path.join(directory, f"{name}_{type_name}.gguf")
                if checks.run(f"convert {name} to {type_name}",
                              [train_gpt2, "convert", model, path, "--type", type_name]) is not None:
                    check_written(checks, model, path, type_name)
                theirs = os.path.join(directory, f"package_{name}_{type_name}.gguf")
                check_read(checks, model, theirs, type_name, train_gpt2, text, ids_of_shard(shard))
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()

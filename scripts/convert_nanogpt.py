#!/usr/bin/env python3
"""Converts a checkpoint of nanoGPT (out/ckpt.pt) to a Hugging Face directory, which ./train_gpt2 and transformers open.

    scripts/setup.sh pytorch
    .venv/bin/python scripts/convert_nanogpt.py out/ckpt.pt NEW_DIR [--meta data/shakespeare_char/meta.pkl]

--meta is for models of characters: its characters become the tokenizer. Models with GPT-2's tokens need none: pass
--tokenizer gpt2. nanoGPT computes GELU exactly and GPT-2 by tanh, which changes a loss by some 1e-4 at most.
Exit status: 0 if the directory was written, 2 for bad input.
"""

import argparse
import json
import os
import pickle
import sys

import safetensors.torch
import torch

MATRICES = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def refuse(message):
    print(f"convert_nanogpt.py: {message}", file=sys.stderr)
    sys.exit(2)


def read_checkpoint(path):
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as e:
        refuse(f"{path}: not a PyTorch checkpoint that can be opened safely ({e})")
    if not isinstance(checkpoint, dict) or not {"model", "model_args"} <= set(checkpoint):
        refuse(f"{path}: has no 'model' and 'model_args'; give nanoGPT's ckpt.pt")
    return checkpoint


def hugging_face_tensors(state, arguments):
    """Hugging Face's names and layout: matrices are (in, out) there, and every bias exists."""
    state = {name.removeprefix("_orig_mod."): tensor for name, tensor in state.items()}  # torch.compile's prefix
    tensors = {}
    for name, tensor in state.items():
        if not name.startswith("transformer.") or name.endswith(".attn.bias"):
            continue  # lm_head is wte, and attn.bias a mask
        tensor = tensor.float()
        tensors[name] = (tensor.T if name.endswith(MATRICES) else tensor).contiguous()
    for name in [name for name in tensors if name.endswith(".weight")]:
        bias = name.removesuffix("weight") + "bias"
        if ".wte." not in name and ".wpe." not in name and bias not in tensors:  # bias=False
            tensors[bias] = torch.zeros(tensors[name].shape[-1])
    expected = 2 + 2 + 12 * arguments["n_layer"]
    if len(tensors) != expected:
        refuse(f"the checkpoint has {len(tensors)} tensors of a GPT, expected {expected}")
    return tensors


def byte_symbols():
    """The printable character that stands for each byte in byte-level BPE files."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


class PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, strings and numbers only: a pickle could otherwise run any code."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it contains {module}.{name}")


def character_tokenizer(path, vocab_size):
    """tokenizer.json for nanoGPT's characters. Bytes and parts of characters that are no token get ids after them, for
    which the model has no rows: such text is refused."""
    try:
        with open(path, "rb") as f:
            ids = PlainUnpickler(f).load()["stoi"]
    except (OSError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as e:
        refuse(f"{path}: not nanoGPT's meta.pkl ({e})")
    if sorted(ids.values()) != list(range(vocab_size)):
        refuse(f"{path}: its ids are not 0 to {vocab_size - 1}, the model's; give the meta.pkl of the training data")
    symbols, vocab, merges = byte_symbols(), {}, []

    def text(encoded):
        return "".join(symbols[byte] for byte in encoded)

    for character, i in ids.items():
        vocab[text(character.encode())] = i
    for part in [bytes([byte]) for byte in range(256)]:
        vocab.setdefault(text(part), len(vocab))
    for encoded in sorted(character.encode() for character in ids):
        for n in range(1, len(encoded)):
            merge = [text(encoded[:n]), text(encoded[n : n + 1])]
            vocab.setdefault("".join(merge), len(vocab))
            if merge not in merges:
                merges.append(merge)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges,
        },
    }  # fmt: skip


def write_json(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="nanoGPT's ckpt.pt")
    parser.add_argument("directory", help="the directory to write, a new one")
    parser.add_argument("--meta", metavar="FILE", help="nanoGPT's meta.pkl, for models of characters")
    args = parser.parse_args()
    if os.path.exists(args.directory):
        refuse(f"{args.directory}: exists already; choose another name")
    checkpoint = read_checkpoint(args.checkpoint)
    arguments = checkpoint["model_args"]
    tensors = hugging_face_tensors(checkpoint["model"], arguments)
    tokenizer = character_tokenizer(args.meta, arguments["vocab_size"]) if args.meta else None

    os.makedirs(args.directory)
    safetensors.torch.save_file(tensors, os.path.join(args.directory, "model.safetensors"), {"format": "pt"})
    write_json(args.directory, "config.json", {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
        "n_layer": arguments["n_layer"], "n_head": arguments["n_head"], "n_embd": arguments["n_embd"],
        "n_positions": arguments["block_size"], "vocab_size": arguments["vocab_size"],
    })  # fmt: skip
    if tokenizer:
        write_json(args.directory, "tokenizer.json", tokenizer)
        write_json(args.directory, "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"})
    print(f"wrote {args.directory}: {arguments['n_layer']} layers, vocabulary {arguments['vocab_size']}"
          f"{'' if tokenizer else '; no tokenizer: pass --tokenizer gpt2 if its tokens are GPT-2' + chr(39) + 's'}")  # fmt: skip


if __name__ == "__main__":
    main()

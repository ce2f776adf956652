#!/usr/bin/env python3
"""Opens a model directory or checkpoint with the Hugging Face libraries, as a user would, and prints what they found.

    check_transformers.py DIR                                  counts, warnings, the tokenizer
    check_transformers.py DIR --prompt TEXT                    and the likeliest next tokens
    check_transformers.py DIR --prompt TEXT --logits FILE      and all logits (T,V), float32, as JSON
    check_transformers.py DIR --same-as OTHER                  the logits of both must be identical
    check_transformers.py --make DIR --layers 2 --vocab 300    write a random model with save_pretrained

Exit status: 0 if all is well, 1 if something is missing, unexpected or different.
"""

import argparse
import json
import logging
import os
import sys

import torch
import transformers


class Warnings(logging.Handler):
    """Collects the libraries' warnings: there must be none for a good directory."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def make(directory, args):
    torch.manual_seed(args.seed)
    config = transformers.GPT2Config(
        n_layer=args.layers, n_head=args.heads, n_embd=args.channels, vocab_size=args.vocab,
        n_positions=args.context, bos_token_id=None, eos_token_id=None,
    )
    model = transformers.GPT2LMHeadModel(config)
    for parameter in model.parameters():  # biases and layernorms too, so that swapping two of them is noticed
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(directory, max_shard_size=args.shard_size)


def open_model(directory):
    """Returns the model in float32, and the keys that did not fit."""
    model, loading = transformers.GPT2LMHeadModel.from_pretrained(
        directory, output_loading_info=True, local_files_only=True, dtype=torch.float32
    )
    problems = [f"{kind}: {sorted(map(str, names))}" for kind, names in loading.items() if names]
    return model.eval(), problems


def logits(model, ids):
    """(T,V) in float32."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def random_ids(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    count = model.config.n_positions
    return torch.randint(model.config.vocab_size, (count,), generator=generator).tolist()


def compare(model, other, ids):
    """The largest difference between two models' logits, NaN if any is NaN."""
    return (logits(model, ids) - logits(other, ids)).abs().max().item()


def open_tokenizer(directory):
    if not any(os.path.exists(os.path.join(directory, f)) for f in ("tokenizer.json", "vocab.json", "merges.txt")):
        return None
    return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)


def show_next(model, tokenizer, ids):
    values, tokens = logits(model, ids)[-1].softmax(0).topk(min(5, model.config.vocab_size))
    for p, token in zip(values.tolist(), tokens.tolist()):
        print(f"  {p:8.4f}  {token:6d}  {tokenizer.decode([token])!r}")


def check(args):
    warnings = Warnings()
    logging.getLogger("transformers").addHandler(warnings)
    model, problems = open_model(args.directory)
    tokenizer = open_tokenizer(args.directory)
    c = model.config
    count = sum(p.numel() for p in model.parameters())
    print(f"layers {c.n_layer}, heads {c.n_head}, channels {c.n_embd}, context {c.n_positions}, "
          f"vocabulary {c.vocab_size}; {count:,} parameters")
    print("tokenizer", "none" if tokenizer is None else f"{type(tokenizer).__name__}, {len(tokenizer)} tokens")

    if args.prompt is not None:
        if tokenizer is None:
            problems.append("a prompt, but no tokenizer")
        else:
            ids = tokenizer(args.prompt)["input_ids"]
            print("ids", ids)
            show_next(model, tokenizer, ids)
            if args.logits:
                with open(args.logits, "w", encoding="utf-8") as file:
                    json.dump({"ids": ids, "logits": logits(model, ids).tolist()}, file)
    if args.same_as:
        other, other_problems = open_model(args.same_as)
        problems += other_problems
        difference = compare(model, other, random_ids(model))
        print("largest difference of the logits", difference)
        if not difference == 0:
            problems.append(f"the logits differ from those of {args.same_as}")

    problems += [f"warning: {m}" for m in warnings.messages]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--prompt", metavar="TEXT")
    parser.add_argument("--logits", metavar="FILE.json", help="needs --prompt")
    parser.add_argument("--same-as", metavar="OTHER", help="another model directory")
    parser.add_argument("--make", action="store_true", help="write a random model to DIR instead")
    for name, value in dict(layers=2, heads=2, channels=32, vocab=300, context=16, seed=1).items():
        parser.add_argument(f"--{name}", type=int, metavar="N", default=value, help=f"with --make (default {value})")
    parser.add_argument("--shard-size", metavar="SIZE", default="50GB", help="with --make: such as 100KB (default 50GB)")
    args = parser.parse_args()
    if args.logits and args.prompt is None:
        parser.error("--logits needs --prompt")
    if args.make:
        if os.path.exists(args.directory):
            parser.error(f"{args.directory} exists")
        make(args.directory, args)
        return 0
    return check(args)


if __name__ == "__main__":
    sys.exit(main())

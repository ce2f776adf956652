#!/usr/bin/env python3
"""Writes dev/test/data/sampling.json: random logits, options of `generate`, and the probabilities that transformers'
logits processors give each token. dev/test/program/generation_test.cpp compares the sampler with them.
    .venv/bin/python scripts/dump_sampling.py
"""
import json
import pathlib
import random

import torch
from transformers import (LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor,
                          TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

random.seed(1)
torch.manual_seed(1)
cases = []
for number in range(60):
    vocab = random.randint(2, 24)
    logits = (torch.randn(vocab) * random.choice([0.5, 2, 6])).mul(1000).round() / 1000
    tokens = [random.randrange(vocab) for _ in range(random.randint(1, 6))]
    options = {
        "repetition_penalty": random.choice([1, 1.3, 0.8]),
        "temperature": random.choice([1, 0.7, 1.5]),
        "top_k": random.choice([0, 1, 3, 10]),
        "top_p": random.choice([1, 0.9, 0.5, 0.2]),
        "min_p": random.choice([0, 0.05, 0.3]),
    }
    if number % 4 == 0:  # equal logits, of which top-p drops those that an unstable sort happens to put first
        logits, options["top_p"] = logits.round(), 1
    rules = LogitsProcessorList()  # in the order of GenerationMixin._get_logits_processor
    if options["repetition_penalty"] != 1:
        rules.append(RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    if options["temperature"] != 1:
        rules.append(TemperatureLogitsWarper(options["temperature"]))
    if options["top_k"]:
        rules.append(TopKLogitsWarper(options["top_k"]))
    if options["top_p"] < 1:
        rules.append(TopPLogitsWarper(options["top_p"]))
    if options["min_p"]:
        rules.append(MinPLogitsWarper(options["min_p"]))
    scores = rules(torch.tensor([tokens]), logits.double()[None].clone())
    probabilities = scores.softmax(-1)[0].tolist()
    cases.append({"logits": [round(x, 3) for x in logits.tolist()], "tokens": tokens, **options,
                  "probabilities": [float(f"{p:.9g}") for p in probabilities]})

path = pathlib.Path(__file__).parent.parent / "dev/test/data/sampling.json"
path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
print(f"wrote {path}: {len(cases)} cases")

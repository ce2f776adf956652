#!/usr/bin/env python3
"""Dumps three Muon steps on small matrices: the formula evaluated in float64, and torch.optim.Muon, which iterates in bf16.

    dump_muon.py OUT.safetensors
"""
import os
import sys

import numpy as np
import torch
from safetensors.numpy import save_file

LR, MOMENTUM, WEIGHT_DECAY, STEPS = 0.02, 0.95, 0.1, 3
SHAPES = [(7, 19), (24, 10), (5, 5), (1, 6), (33, 64)]


def formula(param, momentum, grad):
    """One step as Jordan et al. (2024) write it, in float64."""
    momentum = MOMENTUM * momentum + (1 - MOMENTUM) * grad
    update = (1 - MOMENTUM) * grad + MOMENTUM * momentum
    x = update.T if update.shape[0] > update.shape[1] else update
    x = x / max(np.sqrt((x * x).sum()), 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x.T if update.shape[0] > update.shape[1] else x
    rows, cols = param.shape
    return param * (1 - LR * WEIGHT_DECAY) - LR * max(1, rows / cols) ** 0.5 * x, momentum


def main():
    if len(sys.argv) != 2 or os.path.exists(sys.argv[1]):
        sys.exit("dump_muon.py: expected one argument, the name of a new file")
    random = np.random.default_rng(1337)
    tensors = {}
    for rows, cols in SHAPES:
        name = f"{rows}x{cols}"
        param = random.standard_normal((rows, cols))
        grads = random.standard_normal((STEPS, rows, cols))
        tensors[f"{name}.param"], tensors[f"{name}.grads"] = param, grads
        weight = torch.nn.Parameter(torch.tensor(param))
        optimizer = torch.optim.Muon([weight], lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        exact, momentum = param, np.zeros_like(param)
        for grad in grads:
            exact, momentum = formula(exact, momentum, grad)
            weight.grad = torch.tensor(grad)
            optimizer.step()
        tensors[f"{name}.formula"], tensors[f"{name}.momentum"] = exact, momentum
        tensors[f"{name}.torch"] = weight.detach().numpy()
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, sys.argv[1])


main()

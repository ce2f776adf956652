#!/usr/bin/env python3
"""Dumps three steps on small matrices: Muon's and NorMuon's formulas evaluated in float64, and torch.optim.Muon, which
iterates in bf16.

    dump_muon.py OUT.safetensors
"""
import os
import sys

import numpy as np
import torch
from safetensors.numpy import save_file

LR, MOMENTUM, BETA2, WEIGHT_DECAY, STEPS = 0.02, 0.95, 0.95, 0.1, 3
SHAPES = [(7, 19), (24, 10), (5, 5), (1, 6), (33, 64)]


def normalized(x, squares):
    """x with rows of equal size over time, or columns if it is wide, and its norm as it was (Li et al. 2025)."""
    axis = 1 if x.shape[0] >= x.shape[1] else 0
    squares = BETA2 * squares + (1 - BETA2) * (x * x).mean(axis=axis, keepdims=True)
    y = x / (np.sqrt(squares) + 1e-10)
    return y * (np.linalg.norm(x) / np.linalg.norm(y)), squares


def formula(param, momentum, grad, squares=None):
    """One step as Jordan et al. (2024) write it, in float64; of NorMuon if there are squares."""
    momentum = MOMENTUM * momentum + (1 - MOMENTUM) * grad
    update = (1 - MOMENTUM) * grad + MOMENTUM * momentum
    x = update.T if update.shape[0] > update.shape[1] else update
    x = x / max(np.sqrt((x * x).sum()), 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x.T if update.shape[0] > update.shape[1] else x
    if squares is not None:
        x, squares = normalized(x, squares)
    rows, cols = param.shape
    return param * (1 - LR * WEIGHT_DECAY) - LR * max(1, rows / cols) ** 0.5 * x, momentum, squares


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
        normuon, normuon_momentum, squares = param, np.zeros_like(param), 0.0
        for grad in grads:
            exact, momentum, _ = formula(exact, momentum, grad)
            normuon, normuon_momentum, squares = formula(normuon, normuon_momentum, grad, squares)
            weight.grad = torch.tensor(grad)
            optimizer.step()
        tensors[f"{name}.formula"], tensors[f"{name}.momentum"] = exact, momentum
        tensors[f"{name}.torch"] = weight.detach().numpy()
        tensors[f"{name}.normuon"], tensors[f"{name}.squares"] = normuon, squares.ravel()
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, sys.argv[1])


main()

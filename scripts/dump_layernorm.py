#!/usr/bin/env python3
"""Dumps PyTorch's results of LayerNorm and RMSNorm, with which dev/layernorm/check compares the C++ layers.

    dump_layernorm.py OUT.safetensors                  the fixed list of shapes and options
    dump_layernorm.py --random 1000 OUT.safetensors    1000 random ones
    dump_layernorm.py … --check PROGRAM                write to a temporary file and run PROGRAM on it

The results are from torch.nn.LayerNorm, torch.nn.RMSNorm and autograd, with the loss (out * dout).sum(), plus
(residual * dresidual).sum() if the layer is fused with the residual. The committed file is made by
    rm dev/layernorm/state.safetensors
    scripts/dump_layernorm.py dev/layernorm/state.safetensors
"""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch

import dump_reference


class InputError(Exception):
    pass


# ---- the cases ------------------------------------------------------------------------------------------------------

# The options of a case. weight, bias: learned or absent; dinp, dparams: whether their gradients are wanted; passes: the
# number of backward passes, over which gradients of parameters add up; residual: x + branch is normalized, and also an
# output.
DEFAULTS = {"norm": "layernorm", "dtype": "float64", "eps": 1e-5, "weight": True, "bias": True, "dinp": True,
            "dparams": True, "passes": 1, "residual": False, "offset": 0.0, "spread": 1.0}


def case(shape, dims=1, **options):
    """A case that normalizes over the last `dims` dimensions."""
    chosen = DEFAULTS | ({"bias": False, "eps": 1e-6} if options.get("norm") == "rmsnorm" else {}) | options
    return {"shape": list(shape), "dims": dims, **chosen}


def fixed_cases():
    cases = []
    for norm in ("layernorm", "rmsnorm"):
        affine = [{"weight": False, "bias": False}, {"bias": False}]
        if norm == "layernorm":
            affine += [{"weight": False}, {}]
        for dtype in ("float64", "float32"):
            def add(*args, **options):
                cases.append(case(*args, norm=norm, dtype=dtype, **options))
            for options in affine:
                add((2, 3, 5), **options)
            for shape, dims in [((1, 1), 1), ((4, 1), 1), ((1, 2), 1), ((7,), 1), ((3, 16), 1), ((5, 17), 1),
                                ((2, 67), 1), ((2, 4, 64), 1), ((70, 9), 1), ((2, 768), 1), ((0, 5), 1),
                                ((2, 3, 4, 5), 3), ((3, 4, 5), 2), ((2, 3, 4), 3), ((6, 2, 10), 1)]:
                add(shape, dims)
            add((4, 33), eps=1e-3)
            add((4, 33), eps=1e-12)
            add((4, 33), offset=30.0)
            add((4, 33), spread=1e-3)
            add((4, 33), spread=1e3)
            add((4, 33), dinp=False)
            add((4, 33), dparams=False)
            add((4, 33), passes=2)
            add((4, 33), residual=True)
            add((2, 3, 24), 2, residual=True, weight=False, bias=False)
        cases += [case((3, 48), norm=norm, dtype="bfloat16"), case((9, 21), norm=norm, dtype="bfloat16", residual=True)]
    return cases


def random_cases(count, random):
    cases = []
    while len(cases) < count:
        shape = [int(random.choice([1, 2, 3, random.randint(1, 9), random.randint(1, 70), random.randint(1, 800)]))
                 for _ in range(random.randint(1, 5))]
        if np.prod(shape) > 3000:
            continue
        norm = str(random.choice(["layernorm", "layernorm", "rmsnorm"]))
        dtype = str(random.choice(["float64", "float64", "float32", "float32", "bfloat16"]))
        coin = lambda p=0.5: bool(random.rand() < p)
        options = {"norm": norm, "dtype": dtype, "eps": float(10 ** random.uniform(-8, -1)), "weight": coin(),
                   "bias": norm == "layernorm" and coin(), "dinp": coin(0.9), "dparams": coin(0.9),
                   "passes": 1 + coin(0.2), "residual": coin(0.3), "spread": float(10 ** random.uniform(-2, 2))}
        options["offset"] = float(random.choice([0, 1, -3])) * options["spread"]
        cases.append(case(shape, int(random.randint(1, len(shape) + 1)), **options))
    return cases


# ---- one case -------------------------------------------------------------------------------------------------------


def tensors_of(c, random):
    """Returns {name: tensor} of one case: the layer's inputs and PyTorch's results."""
    dtype, shape, normalized = getattr(torch, c["dtype"]), c["shape"], c["shape"][-c["dims"]:]

    def draw(size, offset=0.0, spread=1.0):
        # bf16 numbers are also exact in float and double, so every type starts from exactly the same numbers.
        values = torch.from_numpy(np.asarray(offset + spread * random.standard_normal(size), np.float32))
        return values.to(torch.bfloat16 if c["dtype"] == "bfloat16" else torch.float32).to(dtype)

    if c["norm"] == "layernorm":
        layer = torch.nn.LayerNorm(normalized, c["eps"], elementwise_affine=c["weight"], bias=c["bias"], dtype=dtype)
    else:
        layer = torch.nn.RMSNorm(normalized, c["eps"], elementwise_affine=c["weight"], dtype=dtype)
    t = {"x": draw(shape, c["offset"], c["spread"]), "dout": draw(shape)}
    if c["residual"]:
        t |= {"branch": draw(shape, 0, c["spread"]), "dresidual": draw(shape)}
    weight = draw(normalized, 1, 0.3) if c["weight"] else None
    bias = draw(normalized, 0, 0.3) if c["bias"] else None
    # torch.nn.LayerNorm does not allow a bias without a weight; F.layer_norm, which it calls, does.
    if bias is not None and weight is None:
        parameters = {"bias": bias.requires_grad_()}
        run = lambda x: torch.nn.functional.layer_norm(x, normalized, None, bias, c["eps"])
    else:
        parameters = dict(layer.named_parameters())
        with torch.no_grad():
            for name, values in (("weight", weight), ("bias", bias)):
                if values is not None:
                    parameters[name].copy_(values)
        run = layer
    for p in parameters.values():
        p.requires_grad_(c["dparams"])
    x = t["x"].clone().requires_grad_(c["dinp"])
    for _ in range(c["passes"]):
        x.grad = None
        residual = x + t["branch"] if c["residual"] else x
        out = run(residual)
        loss = (out * t["dout"]).sum()
        if c["residual"]:
            loss = loss + (residual * t["dresidual"]).sum()
        if loss.requires_grad:
            loss.backward()
    with torch.no_grad():
        if dtype == torch.bfloat16:
            pass  # PyTorch's statistics are bf16, this program's are floats: only the results are compared
        elif c["norm"] == "layernorm":
            _, t["mean"], t["rstd"] = torch.native_layer_norm(residual, normalized, weight, bias, c["eps"])
        else:
            t["rstd"] = (residual.square().mean(tuple(range(-c["dims"], 0))) + c["eps"]).rsqrt()
    t["out"] = out
    if c["residual"]:
        t["residual"] = residual
    if c["dinp"]:
        t["dx"] = x.grad
    for name, p in parameters.items():
        t[name] = p
        if c["dparams"]:
            t["d" + name] = p.grad
    return {name: tensor.detach().contiguous() for name, tensor in t.items()}


def dump(path, cases, seed):
    random = np.random.RandomState(seed)  # its stream is frozen: the same with every version of numpy
    tensors, metadata = {}, {"cases": str(len(cases)), "torch": torch.__version__.split("+")[0]}
    for i, c in enumerate(cases):
        numbers = lambda values: ",".join(map(str, values))
        metadata[f"case.{i:04}"] = (
            f"{c['norm']} {c['dtype']} shape={numbers(c['shape'])} normalized_shape={numbers(c['shape'][-c['dims']:])} "
            f"eps={c['eps']!r} passes={c['passes']}"
        )
        for name, tensor in tensors_of(c, random).items():
            if not torch.isfinite(tensor).all():
                raise InputError(f"case {i}, {name}: not finite; choose another seed")
            # NumPy has no bf16, so the numbers are stored as floats.
            tensors[f"{i:04}.{name}"] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    dump_reference.write_dump(path, tensors, metadata)


# ---- the command line -----------------------------------------------------------------------------------------------


def main(argv=None):
    parser = dump_reference.Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("out", nargs="?", metavar="OUT.safetensors")
    parser.add_argument("--random", type=int, metavar="N", help="random shapes and options instead of the fixed list")
    parser.add_argument("--seed", type=int, default=1337, metavar="N", help="of all numbers (default 1337)")
    parser.add_argument("--check", metavar="PROGRAM", help="write to a temporary file and run PROGRAM on it")
    a = parser.parse_args(argv)
    if bool(a.out) == bool(a.check):
        parser.error("give either OUT.safetensors or --check PROGRAM")
    if a.random is not None and a.random < 1:
        raise InputError(f"--random: found {a.random}, expected 1 or more")
    if not 0 <= a.seed < 2**32:
        raise InputError(f"--seed: found {a.seed}, expected 0 to {2**32 - 1}")
    if a.out and os.path.exists(a.out):
        raise InputError(f"{a.out}: exists; remove it or choose another name")
    torch.set_num_threads(1)  # the same sums on every machine
    cases = random_cases(a.random, np.random.RandomState(a.seed)) if a.random else fixed_cases()
    if a.out:
        dump(a.out, cases, a.seed)
        print(f"{a.out}: {os.path.getsize(a.out)} bytes, {len(cases)} cases")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "layernorm.safetensors")
        dump(path, cases, a.seed)
        return subprocess.run([a.check, "--quiet", path]).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (InputError, OSError, MemoryError) as e:
        print(f"dump_layernorm.py: {e}", file=sys.stderr)
        sys.exit(2)

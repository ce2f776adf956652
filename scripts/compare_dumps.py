#!/usr/bin/env python3
"""Compares two reference dumps tensor by tensor: names, types, shapes, metadata and numbers.

Exit status: 0 if all agree, 1 if there is a difference (NaN is one), 2 if a file cannot be read.
"""

import argparse
import sys

import numpy as np
import safetensors
import safetensors.numpy

VERSIONS = ("torch", "transformers")  # may differ: this script checks that the numbers do not


def compare(path_a, path_b, tolerance):
    """Returns (names that agree, lines about those that do not)."""
    with safetensors.safe_open(path_a, "np") as a, safetensors.safe_open(path_b, "np") as b:
        about_a, about_b = a.metadata() or {}, b.metadata() or {}
    a, b = safetensors.numpy.load_file(path_a), safetensors.numpy.load_file(path_b)
    if not a:
        return [], [f"{path_a}: holds no tensors"]

    passed, failed = [], []
    for key in sorted((about_a.keys() | about_b.keys()) - set(VERSIONS)):
        if about_a.get(key) == about_b.get(key):
            passed.append(key)
        else:
            failed.append(f"metadata {key}: {about_a.get(key)} and {about_b.get(key)}")
    for name in sorted(a.keys() | b.keys()):
        line = difference(a.get(name), b.get(name), tolerance)
        if line:
            failed.append(f"{name}: {line}")
        else:
            passed.append(name)
    return passed, failed


def difference(a, b, tolerance):
    """Returns None if they agree, otherwise one line."""
    if a is None or b is None:
        return f"only in the {'second' if a is None else 'first'} file"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {a.shape} and {b.dtype} {b.shape}"
    if not np.issubdtype(a.dtype, np.floating):
        return None if np.array_equal(a, b) else "differs"
    if a.size == 0:
        return None
    diff, largest = np.abs(a - b).max(), np.abs(a).max()
    if np.isfinite(largest) and diff <= tolerance * largest:  # false for NaN
        return None
    return f"largest difference {diff:.3g}, largest value {largest:.3g}, tolerance {tolerance:g} of that"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A.safetensors")
    parser.add_argument("b", metavar="B.safetensors")
    parser.add_argument("--tolerance", type=float, default=1e-9, help="of the largest value in A (default 1e-9)")
    args = parser.parse_args()
    try:
        passed, failed = compare(args.a, args.b, args.tolerance)
    except (OSError, safetensors.SafetensorError) as e:
        print(f"compare_dumps.py: {args.a}, {args.b}: {e}", file=sys.stderr)
        sys.exit(2)
    for line in failed:
        print(f"FAILED {line}")
    print(f"{len(passed)} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

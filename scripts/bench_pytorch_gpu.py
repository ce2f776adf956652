#!/usr/bin/env python3
"""Times PyTorch's training steps of GPT-2 124M on a GPU, as scripts/gpu_check.sh times this program's.

    bench_pytorch_gpu.py SHARD BATCH...

SHARD holds tokens as ./train_gpt2 tokenize writes them. Prints a line for each batch size, with sequences of 1024 tokens:
    B=64: 123456 tokens/s, median of 20 steps, loss 9.12
Exit status: 0 if all were timed, 1 if one was not, 3 without a PyTorch that can use a GPU.

PyTorch runs in its fastest configuration: bf16 autocast, torch.compile, flash attention (scaled_dot_product_attention),
the vocabulary padded for tensor cores as in this program, fused AdamW, batches from pinned memory. The host's clock
measures from step to step, and each step waits for its loss, as in this program.
"""

import gc
import statistics
import sys
import time

T, VOCABULARY, PADDED = 1024, 50257, 50304
WARM_UP, TIMED = 5, 20


def batches(path, B, T, device):
    """Yields (x, y), each (B,T), in order from the shard, without end."""
    tokens = np.memmap(path, dtype=np.uint16, mode="r", offset=1024)
    position = 0
    while True:
        if position + B * T + 1 > len(tokens):
            position = 0
        piece = np.resize(tokens[position : position + B * T + 1], B * T + 1)  # a short shard is repeated
        position += B * T
        piece = torch.from_numpy(piece.astype(np.int64))
        if device == "cuda":
            piece = piece.pin_memory()
        yield (half.view(B, T).to(device, non_blocking=True) for half in (piece[:-1], piece[1:]))


def time_steps(model, data, device, steps):
    """Returns the seconds of each step, and the last loss."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model, dynamic=False)
    seconds, loss = [], None
    for _ in range(steps):
        start = time.perf_counter()
        x, y = next(data)
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = compiled(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()
        seconds.append(time.perf_counter() - start)
    return seconds, loss


def bench(shard, B, device="cuda", shape=(12, 12, 768, PADDED, T), warm_up=WARM_UP, timed=TIMED):
    """Times one batch size. Returns whether that was possible."""
    layers, heads, C, V, context = shape
    torch.manual_seed(0)
    torch._dynamo.reset()
    try:
        model = bench_pytorch.define_model()(layers, heads, C, V, context).to(device)
        seconds, loss = time_steps(model, batches(shard, B, context, device), device, warm_up + timed)
    except Exception as e:  # out of memory, or no compiler for torch.compile: other batch sizes may still work
        print(f"B={B}: not timed: {type(e).__name__}: {(str(e).strip().splitlines() or [''])[0]}", flush=True)
        return False
    speed = B * context / statistics.median(seconds[warm_up:])
    print(f"B={B}: {speed:.0f} tokens/s, median of {timed} steps, loss {loss:.2f}", flush=True)
    return True


def main():
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}", flush=True)
    torch.set_float32_matmul_precision("high")
    ok = True
    for batch in sys.argv[2:]:
        ok = bench(sys.argv[1], int(batch)) and ok
        gc.collect()
        torch.cuda.empty_cache()
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        import numpy as np
        import torch
        import torch.nn.functional as F
    except ImportError as e:
        print(f"no PyTorch with NumPy: {e}")
        sys.exit(3)
    if not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} finds no GPU that it can use")
        sys.exit(3)
    import bench_pytorch

    bench_pytorch.torch, bench_pytorch.F = torch, F  # bench_pytorch imports them late
    sys.exit(main())

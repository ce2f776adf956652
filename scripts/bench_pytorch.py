#!/usr/bin/env python3
"""PyTorch's side of `make bench-pytorch`: runs one piece of work at a time when asked, and sleeps between.

    bench_pytorch.py THREADS

Lines on stdin, and the answer to each on stdout:
    hello                                          hello
    prepare eager|compile WORK SIZES...            ready, or - REASON (no reason if the mode makes no sense)
    run eager|compile                              seconds per call, over as many calls as take 20 ms
    memory                                         the peak resident set so far, in bytes

PyTorch runs in its fastest configuration: tcmalloc preloaded, AVX-512 for MKL, outputs in place if that is faster, fused
kernels. MKL_AS_IT_IS=1 does not change MKL.
"""

import ctypes.util
import os
import resource
import subprocess
import sys
import time

AT_LEAST = 0.02  # seconds a timing lasts


def avx512_for_mkl():
    """Returns the path of a library that makes MKL use AVX-512, or None if MKL does so itself. On CPUs that are not
    Intel's, MKL uses AVX2, half as fast, even if they have AVX-512; the library only answers MKL's question for Intel."""
    try:
        cpu = open("/proc/cpuinfo").read()
    except OSError:
        return None
    if "GenuineIntel" in cpu or "avx512f" not in cpu:
        return None
    path = os.path.abspath("build/mkl_avx512.so")
    os.makedirs("build", exist_ok=True)
    source = "int mkl_serv_intel_cpu_true(void) { return 1; }"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", path, "-"], input=source, text=True, check=True)
    return path


def restart_at_its_best():
    """Restarts with tcmalloc and with MKL's AVX-512. glibc's malloc returns large blocks to the kernel, and page faults
    cost PyTorch up to half of its speed."""
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    if "PYTORCH_AT_ITS_BEST" not in os.environ:
        mkl = avx512_for_mkl() if os.environ.get("MKL_AS_IT_IS") is None else None
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # otherwise processes start during a timing
        os.environ |= {"PYTORCH_AT_ITS_BEST": "1", "LD_PRELOAD": ":".join(filter(None, [tcmalloc, mkl]))}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if not tcmalloc:
        print("PyTorch runs without tcmalloc: slower than it could (scripts/setup.sh pytorch)", file=sys.stderr)


def random(*shape):
    return torch.rand(*shape) - 0.5


def tokens(vocab, *shape):
    return torch.randint(vocab, shape)


# Each builder takes the sizes, and returns the function to time and whether torch.compile can improve it.


def matmul_forward(N, C, OC):
    inp, weight, out = random(N, C), random(OC, C), random(N, OC)
    return lambda: torch.mm(inp, weight.t(), out=out), False


def matmul_dinput(N, C, OC):
    dout, weight, dinp = random(N, OC), random(OC, C), random(N, C)
    return lambda: torch.mm(dout, weight, out=dinp), False


def matmul_dweight(N, C, OC):
    dout, inp, dweight = random(N, OC), random(N, C), random(OC, C)
    return lambda: torch.mm(dout.t(), inp, out=dweight), False


def classifier_forward(N, C, V):
    inp, weight, targets = random(N, C), random(V, C), tokens(V, N)
    return lambda: F.cross_entropy(F.linear(inp, weight), targets, reduction="none"), True


def classifier_forward_backward(N, C, V):
    inp, weight, targets = random(N, C).requires_grad_(), random(V, C).requires_grad_(), tokens(V, N)
    loss = lambda: F.cross_entropy(F.linear(inp, weight), targets)
    return with_gradients(loss, [inp, weight])


def cross_entropy_forward_backward(N, V):
    logits, targets = random(N, V).requires_grad_(), tokens(V, N)
    return with_gradients(lambda: F.cross_entropy(logits, targets), [logits])


def with_gradients(loss, inputs):
    """torch.compile compiles the forward, and with it the backward."""

    def build(compiled):
        forward = torch.compile(loss) if compiled else loss
        return lambda: torch.autograd.grad(forward(), inputs)

    return build, True


def attend(qkv, heads):
    """qkv (B,T,3C) to (B,T,C)"""
    B, T, C3 = qkv.shape
    q, k, v = qkv.view(B, T, 3, heads, C3 // 3 // heads).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C3 // 3)


def attention_forward(B, T, heads, size):
    qkv = random(B, T, 3 * heads * size)
    return lambda: attend(qkv, heads), True


def attention_backward(B, T, heads, size):
    qkv, dout = random(B, T, 3 * heads * size).requires_grad_(), random(B, T, heads * size)

    def build(compiled):
        with torch.enable_grad():
            out = (torch.compile(attend) if compiled else attend)(qkv, heads)
        return lambda: torch.autograd.grad(out, qkv, dout, retain_graph=True)

    return build, True


def layernorm_forward(N, C):
    x, weight, bias = random(N, C), random(C), random(C)
    return lambda: torch.native_layer_norm(x, (C,), weight, bias, 1e-5), True


def layernorm_backward(N, C):
    x, dout, weight, bias = random(N, C), random(N, C), random(C), random(C)
    _, mean, rstd = torch.native_layer_norm(x, (C,), weight, bias, 1e-5)
    backward = torch.ops.aten.native_layer_norm_backward
    return lambda: backward(dout, x, (C,), mean, rstd, weight, bias, [True, True, True]), True


def gelu_forward(N, C):
    x = random(N, C)
    return lambda: F.gelu(x, approximate="tanh"), True


def gelu_backward(N, C):
    x, dout = random(N, C), random(N, C)
    return lambda: torch.ops.aten.gelu_backward(dout, x, approximate="tanh"), True


def embedding_forward(B, T, C, V):
    wte, wpe, ids = random(V, C), random(T, C), tokens(V, B, T)
    return lambda: F.embedding(ids, wte) + wpe, True


def embedding_backward(B, T, C, V):
    """Adds to existing gradients, as this program does: PyTorch's own backward would also clear a (V,C) matrix."""
    dwte, dwpe, dout, ids = random(V, C), random(T, C), random(B, T, C), tokens(V, B * T)

    def backward():
        dwte.index_add_(0, ids, dout.view(B * T, C))
        dwpe.add_(dout.sum(0))

    return backward, True


def global_norm(n):
    grad = random(n)
    return lambda: torch.linalg.vector_norm(grad), True


def adamw(n):
    parameter = random(n).requires_grad_()
    parameter.grad = random(n)
    return torch.optim.AdamW([parameter], fused=True).step, False


def muon(layers, C):
    """torch.optim.Muon iterates in bf16."""
    matrices = [random(rows, C) for _ in range(layers) for rows in (3 * C, C, 4 * C)]
    matrices += [random(C, 4 * C) for _ in range(layers)]
    for matrix in matrices:
        matrix.requires_grad_()
        matrix.grad = random(*matrix.shape)
    return torch.optim.Muon(matrices, lr=0.02).step, False


def step(layers, heads, C, V, context, B, T):
    model = GPT2(layers, heads, C, V, context)
    x, y = tokens(V, B, T), tokens(V, B, T)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)

    def build(compiled):
        forward = torch.compile(model) if compiled else model

        def one():
            loss = forward(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()

        return one

    return build, True


def define_model():
    """A plain GPT-2. It is defined in a function because torch is imported only after tcmalloc is loaded."""

    class Block(torch.nn.Module):
        def __init__(self, heads, C):
            super().__init__()
            self.heads = heads
            self.ln1, self.ln2 = torch.nn.LayerNorm(C), torch.nn.LayerNorm(C)
            self.qkv, self.attproj = torch.nn.Linear(C, 3 * C), torch.nn.Linear(C, C)
            self.fc, self.fcproj = torch.nn.Linear(C, 4 * C), torch.nn.Linear(4 * C, C)

        def forward(self, x):
            x = x + self.attproj(attend(self.qkv(self.ln1(x)), self.heads))
            return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))

    class GPT2(torch.nn.Module):
        def __init__(self, layers, heads, C, V, context):
            super().__init__()
            self.wte, self.wpe = torch.nn.Embedding(V, C), torch.nn.Embedding(context, C)
            self.blocks = torch.nn.ModuleList([Block(heads, C) for _ in range(layers)])
            self.lnf = torch.nn.LayerNorm(C)
            for p in self.parameters():
                if p.dim() == 2:
                    torch.nn.init.normal_(p, std=0.02)

        def forward(self, x, y):
            h = self.wte(x) + self.wpe.weight[: x.shape[1]]
            for block in self.blocks:
                h = block(h)
            logits = F.linear(self.lnf(h), self.wte.weight)
            return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    return GPT2


WORKS = [matmul_forward, matmul_dinput, matmul_dweight, classifier_forward, classifier_forward_backward]
WORKS += [cross_entropy_forward_backward, attention_forward, attention_backward, layernorm_forward]
WORKS += [layernorm_backward, gelu_forward, gelu_backward, embedding_forward, embedding_backward]
WORKS += [global_norm, adamw, muon, step]
WITH_GRADIENTS = {"classifier_forward_backward", "cross_entropy_forward_backward", "attention_backward", "step"}


def prepare(mode, work, sizes):
    """Returns the function to time, after one call; None if the mode makes no sense."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch.set_grad_enabled(work in WITH_GRADIENTS)
    body, compilable = {f.__name__: f for f in WORKS}[work](*sizes)
    compiled = mode == "compile"
    if compiled and not compilable:
        return None
    if work in WITH_GRADIENTS:
        body = body(compiled)
    elif compiled:
        body = torch.compile(body)
    grad = torch.is_grad_enabled()

    def call():
        with torch.set_grad_enabled(grad):
            return body()

    call()  # compiles
    rest()
    return call


def rest():
    """Returns when this process's threads sleep: OpenMP's threads spin for a while after work (14 ms when measured,
    200 ms by KMP_BLOCKTIME), and would disturb the next timing."""
    give_up, busy = time.perf_counter() + 1, True
    while busy and time.perf_counter() < give_up:
        cpu, start = time.process_time(), time.perf_counter()
        time.sleep(0.005)
        busy = time.process_time() - cpu > 0.1 * (time.perf_counter() - start)


def seconds_a_call(call):
    """As in dev/harness.h: the first call counts only if it takes long."""
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    if seconds < 10 * AT_LEAST:
        calls, start, seconds = 0, time.perf_counter(), 0
        while seconds < AT_LEAST:
            call()
            calls += 1
            seconds = time.perf_counter() - start
        seconds /= calls
    rest()
    return seconds


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries is not an answer
    torch.set_num_threads(int(sys.argv[1]))
    ready = {}
    for line in sys.stdin:
        command, *words = line.split()
        if command == "prepare":
            ready.pop(words[0], None)
            try:
                call = prepare(words[0], words[1], list(map(int, words[2:])))
                if call:
                    ready[words[0]] = call
                print("ready" if call else "-", file=answers)
            except Exception as e:  # if PyTorch fails, the row has no time of it
                lines = str(e).strip().splitlines() or [""]
                print(f"- {type(e).__name__}: {lines[0]}", file=answers)
        elif command == "run":
            print(seconds_a_call(ready[words[0]]), file=answers)
        elif command == "memory":
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=answers)
        else:
            print(command, file=answers)


if __name__ == "__main__":
    restart_at_its_best()
    import torch
    import torch.nn.functional as F

    GPT2 = define_model()
    main()

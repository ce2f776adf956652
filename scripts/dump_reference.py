#!/usr/bin/env python3
"""Dumps PyTorch's results for a small random GPT-2, with which test_gpt2 compares the C++ model.

    dump_reference.py OUT.safetensors               every activation, gradient and 10 AdamW steps, by name
    dump_reference.py --dropout 0.1 OUT.safetensors the same with dropout, by the masks of the C++ model
    dump_reference.py --llmc OUT.bin OUT_state.bin  an llm.c model (version 3) and debug state (version 2)

The committed dump is made with the defaults:
    rm dev/test/data/gpt2_reference.safetensors
    scripts/dump_reference.py dev/test/data/gpt2_reference.safetensors
"""

import argparse
import json
import os
import struct
import sys

import numpy as np
import safetensors.numpy
import torch
import torch.nn.functional as F
import transformers
from transformers.models.gpt2 import modeling_gpt2

# llm.c's order and names, and transformers' names without "transformer." ('#' is the block's number).
PARAMETERS = [
    ("wte", "wte.weight"), ("wpe", "wpe.weight"),
    ("ln1w", "h.#.ln_1.weight"), ("ln1b", "h.#.ln_1.bias"),
    ("qkvw", "h.#.attn.c_attn.weight"), ("qkvb", "h.#.attn.c_attn.bias"),
    ("attprojw", "h.#.attn.c_proj.weight"), ("attprojb", "h.#.attn.c_proj.bias"),
    ("ln2w", "h.#.ln_2.weight"), ("ln2b", "h.#.ln_2.bias"),
    ("fcw", "h.#.mlp.c_fc.weight"), ("fcb", "h.#.mlp.c_fc.bias"),
    ("fcprojw", "h.#.mlp.c_proj.weight"), ("fcprojb", "h.#.mlp.c_proj.bias"),
    ("lnfw", "ln_f.weight"), ("lnfb", "ln_f.bias"),
]
SHAPE = {"layers": 2, "heads": 3, "channels": 21, "vocab": 67, "context": 17}
OPTIMIZER = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "steps": 10}
# The settings with which GPT2LMHeadModel computes GPT-2.
GPT2_SETTINGS = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "tie_word_embeddings": True,
}


class InputError(Exception):
    pass


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")


# ---- the model ----------------------------------------------------------------------------------------------------


def random_model(shape, random):
    config = transformers.GPT2Config(
        n_layer=shape["layers"], n_head=shape["heads"], n_embd=shape["channels"], n_positions=shape["context"],
        vocab_size=shape["vocab"], attn_implementation="eager", **GPT2_SETTINGS,
    )
    model = transformers.GPT2LMHeadModel(config)
    for name, hf in PARAMETERS:
        for tensor in pieces(model, hf):
            # Not GPT-2's initialization: no bias is 0, no LayerNorm weight is 1, and attention is far from
            # uniform, so that a wrong or missing term is noticed.
            normal = random.standard_normal(tuple(tensor.shape))
            if tensor.dim() == 2:
                fan_in = 4 * shape["channels"] if name == "fcprojw" else shape["channels"]
                normal *= 1.2 / fan_in**0.5
            else:
                normal = 1 + 0.2 * normal if name.endswith("w") else 0.1 * normal
            # The model is fp32: a C++ model in floats starts from exactly these numbers.
            tensor.data = torch.from_numpy(normal.astype(np.float32))
    return model


def pretrained_model(directory):
    if not os.path.isfile(os.path.join(directory, "config.json")):
        raise InputError(f"{directory}: no config.json; --from takes a Hugging Face GPT-2 directory")
    model = transformers.GPT2LMHeadModel.from_pretrained(
        directory, local_files_only=True, dtype=torch.float32, attn_implementation="eager"
    )
    for key, expected in GPT2_SETTINGS.items():
        if getattr(model.config, key) != expected:
            raise InputError(f"{directory}: {key}: found {getattr(model.config, key)}, expected {expected}")
    return model


def pieces(model, hf):
    """The tensors of one row of PARAMETERS: one per block, or a single one."""
    if "#" not in hf:
        return [model.transformer.get_parameter(hf)]
    return [model.transformer.get_parameter(hf.replace("#", str(l))) for l in range(model.config.n_layer)]


def flat_layout(model, name, hf, pick):
    """pick(parameter) as llm.c stores it: stacked over blocks, matrices (out,in), wte padded with zero rows."""
    with torch.no_grad():
        if "#" in hf:
            tensor = torch.stack([pick(p).T if p.dim() == 2 else pick(p) for p in pieces(model, hf)])
        else:
            (tensor,) = [pick(p) for p in pieces(model, hf)]
        if name == "wte":
            tensor = F.pad(tensor, (0, 0, 0, -tensor.shape[0] % 128))
        return tensor.contiguous().numpy()


# ---- dropout --------------------------------------------------------------------------------------------------------


def philox(counter, key):
    """Philox4x32-10 of arrays of uint64 whose upper halves are 0."""
    x, low = list(counter), np.uint64(0xFFFFFFFF)
    for r in range(10):
        a, b = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        key0, key1 = [np.uint64((k + r * c) & 0xFFFFFFFF) for k, c in zip(key, (0x9E3779B9, 0xBB67AE85))]
        x = [b >> np.uint64(32) ^ x[1] ^ key0, b & low, a >> np.uint64(32) ^ x[3] ^ key1, a & low]
    return x


class GivenMask(torch.nn.Module):
    """Dropout by the masks of device/random.h and layers/dropout.h, written here a second time."""

    def __init__(self, p, seed, site):
        super().__init__()
        self.p, self.seed, self.site, self.step = p, seed, site, 1

    def factor(self, shape):
        rows, n = int(np.prod(shape[:-1])), shape[-1]
        draws = -(-n // 8)
        index = np.arange(rows * draws, dtype=np.uint64)
        constant = [np.full_like(index, word) for word in (0, self.step, 6 | self.site << 16)]
        words = philox([index, *constant], (self.seed & 0xFFFFFFFF, self.seed >> 32))
        numbers = np.stack([part for w in words for part in (w & np.uint64(0xFFFF), w >> np.uint64(16))], -1)
        threshold = min(round(self.p * 65536), 65535)
        kept = numbers.reshape(rows, draws * 8)[:, :n].reshape(shape) >= threshold
        return torch.from_numpy(kept * (65536 / (65536 - threshold)))

    def forward(self, x):
        return x * self.factor(x.shape).to(x.dtype)


EAGER = modeling_gpt2.eager_attention_forward


def attention_with_given_mask(module, query, key, value, attention_mask, **settings):
    """transformers' attention calls functional.dropout, which does nothing in eval(), instead of attn_dropout."""
    out, weights = EAGER(module, query, key, value, attention_mask, **settings)
    if not isinstance(module.attn_dropout, GivenMask):
        return out, weights
    weights = module.attn_dropout(weights)
    return (weights @ value).transpose(1, 2), weights


def use_given_masks(model, p, seed):
    modeling_gpt2.eager_attention_forward = attention_with_given_mask
    transformer = model.transformer
    transformer.drop = GivenMask(p, seed, 0)
    for l, block in enumerate(transformer.h):
        block.attn.attn_dropout = GivenMask(p, seed, 1 + 3 * l)
        block.attn.resid_dropout = GivenMask(p, seed, 2 + 3 * l)
        block.mlp.dropout = GivenMask(p, seed, 3 + 3 * l)


def set_step(model, step):
    for module in model.modules():
        if isinstance(module, GivenMask):
            module.step = step


def mean_loss(logits, y):
    # Not transformers' own loss: that one rounds the logits to fp32.
    losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    return losses.mean(), losses


# ---- activations and their gradients -------------------------------------------------------------------------------


def capture(model, x):
    """One forward pass: {name: tensor}, each still part of autograd's graph, and attention's softmax."""
    seen, softmax = {}, {}

    def record(name, tensor):
        if tensor.requires_grad and not tensor.is_leaf:
            tensor.retain_grad()
        seen[name] = tensor

    def output(module, name):
        hooks.append(module.register_forward_hook(lambda m, args, out: record(name, out)))

    def input(module, name):
        hooks.append(module.register_forward_pre_hook(lambda m, args: record(name, args[0])))

    hooks = []
    input(model.transformer.drop, "embedding")
    for l, block in enumerate(model.transformer.h):
        input(block, f"residual1.{l}")
        output(block.ln_1, f"ln1.{l}")
        output(block.attn.c_attn, f"qkv.{l}")
        input(block.attn.c_proj, f"atty.{l}")
        output(block.attn.resid_dropout, f"attproj.{l}")
        input(block.ln_2, f"residual2.{l}")
        output(block.ln_2, f"ln2.{l}")
        output(block.mlp.c_fc, f"fch.{l}")
        output(block.mlp.act, f"fch_gelu.{l}")
        output(block.mlp.dropout, f"fcproj.{l}")
        hooks.append(block.attn.register_forward_hook(lambda m, args, out, l=l: softmax.update({l: out[1].detach()})))
    input(model.transformer.ln_f, f"residual1.{model.config.n_layer}")
    output(model.transformer.ln_f, "lnf")
    output(model.lm_head, "logits")
    model(x, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen, softmax


def add_statistics(model, act):
    """Adds values that transformers does not keep: LayerNorm's mean and rstd, attention's logsumexp."""
    heads, L = model.config.n_head, model.config.n_layer

    def layernorm(name, suffix, source):
        x = act[source]
        act[f"{name}_mean{suffix}"] = x.mean(-1)
        act[f"{name}_rstd{suffix}"] = (x.var(-1, correction=0) + model.config.layer_norm_epsilon).rsqrt()

    for l in range(L):
        layernorm("ln1", f".{l}", f"residual1.{l}")
        layernorm("ln2", f".{l}", f"residual2.{l}")
        scores, _ = attention_scores(act[f"qkv.{l}"], heads)
        act[f"logsumexp.{l}"] = scores.logsumexp(-1)
    layernorm("lnf", "", f"residual1.{L}")


def attention_scores(qkv, heads):
    """Masked q·k/sqrt(hs) (B,NH,T,T), and v (B,NH,T,hs)."""
    B, T, C3 = qkv.shape
    q, k, v = qkv.view(B, T, 3, heads, C3 // 3 // heads).permute(2, 0, 3, 1, 4)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / (C3 // 3 // heads) ** 0.5
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf), v


def check_pieces(model, act, softmax, tolerance):
    """Checks the captured tensors: each must follow from others by GPT-2's formulas."""

    def same(name, found, expected):
        difference = (found - expected).abs().max().item()
        if not difference <= tolerance * expected.abs().max().item():
            raise InputError(f"{name}: differs from its formula by {difference:g}; transformers computes something else")

    def layernorm(name, suffix, source, module):
        norm = (act[source] - act[f"{name}_mean{suffix}"][..., None]) * act[f"{name}_rstd{suffix}"][..., None]
        same(f"{name}{suffix}", act[f"{name}{suffix}"], norm * module.weight + module.bias)

    def dropped(module, x):
        return x * module.factor(x.shape).to(x.dtype) if isinstance(module, GivenMask) else x

    same("residual1.0", act["residual1.0"], dropped(model.transformer.drop, act["embedding"]))
    for l, block in enumerate(model.transformer.h):
        layernorm("ln1", f".{l}", f"residual1.{l}", block.ln_1)
        same(f"qkv.{l}", act[f"qkv.{l}"], act[f"ln1.{l}"] @ block.attn.c_attn.weight + block.attn.c_attn.bias)
        scores, v = attention_scores(act[f"qkv.{l}"], model.config.n_head)
        weights = dropped(block.attn.attn_dropout, (scores - act[f"logsumexp.{l}"][..., None]).exp())
        same(f"softmax.{l}", softmax[l], weights)
        same(f"atty.{l}", act[f"atty.{l}"], torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2))
        attproj = act[f"atty.{l}"] @ block.attn.c_proj.weight + block.attn.c_proj.bias
        same(f"attproj.{l}", act[f"attproj.{l}"], dropped(block.attn.resid_dropout, attproj))
        same(f"residual2.{l}", act[f"residual2.{l}"], act[f"residual1.{l}"] + act[f"attproj.{l}"])
        layernorm("ln2", f".{l}", f"residual2.{l}", block.ln_2)
        same(f"fch.{l}", act[f"fch.{l}"], act[f"ln2.{l}"] @ block.mlp.c_fc.weight + block.mlp.c_fc.bias)
        same(f"fch_gelu.{l}", act[f"fch_gelu.{l}"], F.gelu(act[f"fch.{l}"], approximate="tanh"))
        fcproj = act[f"fch_gelu.{l}"] @ block.mlp.c_proj.weight + block.mlp.c_proj.bias
        same(f"fcproj.{l}", act[f"fcproj.{l}"], dropped(block.mlp.dropout, fcproj))
        same(f"residual1.{l + 1}", act[f"residual1.{l + 1}"], act[f"residual2.{l}"] + act[f"fcproj.{l}"])
    layernorm("lnf", "", f"residual1.{len(softmax)}", model.transformer.ln_f)
    same("logits", act["logits"], act["lnf"] @ model.transformer.wte.weight.T)


# ---- training -------------------------------------------------------------------------------------------------------


def train(model, x, y):
    o = OPTIMIZER
    parameters = list(model.parameters())  # wte once: lm_head's is the same tensor
    groups = [
        {"params": [p for p in parameters if p.dim() == 2], "weight_decay": o["weight_decay"]},
        {"params": [p for p in parameters if p.dim() != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"])
    losses, norms = [], []
    for step in range(1, o["steps"] + 1):
        set_step(model, step)
        optimizer.zero_grad()
        loss, _ = mean_loss(model(x, use_cache=False).logits, y)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, o["clip"]).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms


# ---- files ----------------------------------------------------------------------------------------------------------


def write(path, chunks):
    """Writes to a temporary file and renames it, so that the file is never half-written."""
    beside = path + ".tmp"
    try:
        with open(beside, "wb") as f:
            for chunk in chunks:
                f.write(chunk)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    except OSError:
        if os.path.exists(beside):
            os.remove(beside)
        raise


def write_dump(path, tensors, metadata):
    data = safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in tensors.items()})
    # The header is made here, because the library writes metadata in an order that changes from run to run.
    (length,) = struct.unpack("<Q", data[:8])
    header = {"__metadata__": dict(sorted(metadata.items())), **json.loads(data[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write(path, [struct.pack("<Q", len(text)), text, data[8 + length :]])


def dump(path, model, x, y, settings, dtype):
    act, softmax = capture(model, x)
    loss, losses = mean_loss(act["logits"], y)
    loss.backward()
    gradients = {name: tensor.grad for name, tensor in act.items() if not name.startswith(("attproj", "fcproj"))}
    gradients["residual1.0"] = gradients.pop("embedding")  # dropout's backward is in place
    act = {name: tensor.detach() for name, tensor in act.items()}
    with torch.no_grad():
        add_statistics(model, act)
        check_pieces(model, act, softmax, 1e-12 if dtype == torch.float64 else 1e-5)
    del act["embedding"]
    act["losses"] = losses.detach()

    tensors = {"x": x.numpy().astype(np.int32), "y": y.numpy().astype(np.int32)}
    for name, hf in PARAMETERS:
        tensors[f"param.{name}"] = flat_layout(model, name, hf, lambda p: p)
        tensors[f"grad.{name}"] = flat_layout(model, name, hf, lambda p: p.grad).copy()
    tensors |= {f"act.{name}": tensor.numpy() for name, tensor in act.items()}
    tensors |= {f"dact.{name}": tensor.numpy() for name, tensor in gradients.items()}
    number = tensors["act.logits"].dtype
    tensors["loss"] = np.array([loss.item()], number)
    tensors = {name: tensor.copy() for name, tensor in tensors.items()}  # training changes parameters in place
    train_losses, norms = train(model, x, y)
    tensors["train.losses"], tensors["train.grad_norms"] = np.array(train_losses, number), np.array(norms, number)
    for name, hf in PARAMETERS:
        tensors[f"final.{name}"] = flat_layout(model, name, hf, lambda p: p)
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise InputError(f"{name}: not finite; choose another shape or seed")

    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    write_dump(path, tensors, {k: str(v) for k, v in {**settings, **OPTIMIZER, **versions}.items()})
    print(
        f"{path}: {os.path.getsize(path)} bytes, {len(tensors)} tensors, loss {loss.item():.6f}, "
        f"after {len(norms)} steps {train_losses[-1]:.6f}, gradient norms {' '.join(f'{n:.3f}' for n in norms)}"
    )


def write_llmc(model_path, state_path, model, x, y):
    logits = model(x, use_cache=False).logits
    loss, _ = mean_loss(logits, y)
    loss.backward()

    c = model.config
    padded = c.vocab_size + -c.vocab_size % 128
    shape = [c.n_positions, c.vocab_size, c.n_layer, c.n_head, c.n_embd, padded]

    def header(*words):
        return np.array(words + (0,) * (256 - len(words)), "<i4").tobytes()

    def all_parameters(pick):
        return (flat_layout(model, name, hf, pick).astype("<f4").tobytes() for name, hf in PARAMETERS)

    def state():
        yield header(20240327, 2, *x.shape)
        yield x.numpy().astype("<i4").tobytes()
        yield y.numpy().astype("<i4").tobytes()
        yield logits.detach().numpy().astype("<f4").tobytes()
        yield np.array([loss.item()], "<f4").tobytes()
        yield from all_parameters(lambda p: p.grad)

    def parameters():
        yield header(20240326, 3, *shape)
        yield from all_parameters(lambda p: p)

    write(state_path, state())
    write(model_path, parameters())
    sizes = f"{os.path.getsize(model_path)} + {os.path.getsize(state_path)} bytes"
    print(f"{model_path}, {state_path}: {sizes}, loss {loss.item():.6f}")


# ---- the command line -----------------------------------------------------------------------------------------------


def parse(argv):
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("out", nargs="?", metavar="OUT.safetensors")
    parser.add_argument("--llmc", nargs=2, metavar=("OUT.bin", "OUT_state.bin"), help="write an llm.c pair instead")
    parser.add_argument("--from", dest="source", metavar="HF_DIR", help="with --llmc: this model, not a random one")
    for name, value in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"of the random model (default {value})")
    parser.add_argument("--batch", type=int, default=3, metavar="N", help="rows of tokens (default 3)")
    parser.add_argument("--seq", type=int, default=13, metavar="N", help="tokens in a row (default 13)")
    parser.add_argument("--seed", type=int, default=1337, metavar="N", help="of weights and tokens (default 1337)")
    parser.add_argument("--dropout", type=float, default=0, metavar="P", help="in a dump's training (default 0)")
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64", help="to compute in")
    a = parser.parse_args(argv)
    if bool(a.out) == bool(a.llmc):
        parser.error("give either OUT.safetensors or --llmc OUT.bin OUT_state.bin")
    if not 0 <= a.dropout < 1 or (a.dropout and a.llmc):
        parser.error("--dropout takes 0 to 1, and goes with OUT.safetensors")
    if a.source and not a.llmc:
        parser.error("--from goes with --llmc")
    for path in a.llmc or [a.out]:
        if os.path.exists(path):
            raise InputError(f"{path}: exists; remove it or choose another name")
    if not 0 <= a.seed < 2**32:
        raise InputError(f"--seed: found {a.seed}, expected 0 to {2**32 - 1}")
    for name in [*SHAPE, "batch", "seq"]:
        value = getattr(a, name)
        if value is not None and a.source and name in SHAPE:
            raise InputError(f"--{name}: the model of --from has its own; leave it out")
        if value is not None and not 1 <= value < 2**31:
            raise InputError(f"--{name}: found {value}, expected 1 or more")
    return a


def main(argv=None):
    a = parse(argv)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    if not a.llmc:
        torch.set_num_threads(1)  # the same sums on every machine
    random = np.random.RandomState(a.seed)  # its stream is frozen: the same with every version of numpy
    dtype = getattr(torch, a.dtype)

    if a.source:
        model = pretrained_model(a.source)
    else:
        shape = {k: v if getattr(a, k) is None else getattr(a, k) for k, v in SHAPE.items()}
        if shape["channels"] % shape["heads"]:
            raise InputError(f"--channels: found {shape['channels']}, expected a multiple of --heads {shape['heads']}")
        model = random_model(shape, random)
    model = model.to(dtype).eval()  # eval: no dropout but that of given masks
    if a.dropout:
        use_given_masks(model, a.dropout, a.seed)
    context, vocab = model.config.n_positions, model.config.vocab_size
    if a.seq > context:
        raise InputError(f"--seq: found {a.seq}, expected at most the model's context {context}")
    tokens = torch.from_numpy(random.randint(0, vocab, (a.batch, a.seq + 1)))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if a.llmc:
        write_llmc(*a.llmc, model, x, y)
    else:
        settings = {**shape, "batch": a.batch, "seq": a.seq, "seed": a.seed, "dtype": a.dtype}
        settings |= {"dropout": a.dropout} if a.dropout else {}
        dump(a.out, model, x, y, settings, dtype)


if __name__ == "__main__":
    try:
        main()
    except (InputError, OSError, MemoryError) as e:
        print(f"dump_reference.py: {e}", file=sys.stderr)
        sys.exit(2)

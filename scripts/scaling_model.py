#!/usr/bin/env python3
"""Computes how training scales over ranks (mpirun -n R ./train_gpt2) from measured step times and a model of the
exchange. Prints the tables of dev/results/SCALING.md and draws dev/results/scaling.svg.

    scaling_model.py            prints and draws
    scaling_model.py --check    checks that both are up to date, and the model's bytes against those that ./train_gpt2
                                --profile counts on 4 ranks

P parameters, R ranks. The slice of a rank has P/R parameters. In one step a rank
  sends      4 P (R-1)/R bytes of gradients, and as many of parameters (ZeRO stage 1: Rajbhandari et al. 2020), or half
             as many where parameters are bf16 (GPUs);
  in rounds  of at most max(2^14, 2^22/(R-1)) gradients per message (device/parallel/slices.h): ceil(P/R/that) rounds,
             and one for the parameters, each of R-1 messages. A step exchanges five small ones besides: losses, runs
             of the norm, the end of a slice, two flags;
  adds       R-1 parts of its slice, at 12 bytes per value (two read, one written).
The time of a round is that of LogGP (Alexandrov et al. 1995) with a rendezvous, in which a message is announced,
requested and sent: 3 L + (R-1) o + bytes/bandwidth. L is the time of flight, o the time that a processor works for a
message. Nothing overlaps, as in the program on CPUs; on GPUs the additions do, which take at most 3 % of the exchange.
The network is full duplex and as fast between any two ranks.

The share of linear speed is c/(c + x): x is the time of the exchange, and c that of the rank's part of the total batch,
at the FLOP/s of the measured step, whatever the model's size. A share s takes c >= x s/(1 - s), at least one sequence
per rank. The sum of one rank's own shards is left out: --shards R has one per rank.
"""

import csv
import hashlib
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "dev", "results")
DOCUMENT, PICTURE = os.path.join(RESULTS, "SCALING.md"), os.path.join(RESULTS, "scaling.svg")

MODELS = {"124M": (12, 768), "355M": (24, 1024), "774M": (36, 1280), "1.5B": (48, 1600)}  # layers, channels
RANKS = [8, 64, 1024]
LINKS = [10, 100, 400]  # Gbit/s
CONTEXT, VOCAB = 1024, 50304  # padded
TOTAL_BATCH = 1 << 20  # tokens
WANTED = 0.9  # of linear speed
STEP, GPU_STEP = "step 124M B=4 T=1024", "124M B=64 T=1024"

# Assumed of TCP on a data center's Ethernet.
LATENCY = 20e-6  # seconds: L
OVERHEAD = 5e-6  # seconds per message: o
PAYLOAD = 0.94  # of a link's bits: 1,448 of the 1,538 bytes that a packet takes


@dataclass
class Rank:
    """What one rank computes with."""
    name: str
    flops: float  # per second, in a training step
    memory: float  # bytes per second
    parameter_bytes: int = 4  # of a parameter that is sent


def machines():
    """A measured CPU and a measured GPU, which asks more of the network."""
    with open(os.path.join(RESULTS, "AMD-EPYC-family-26.csv"), newline="", encoding="utf-8") as f:
        f.readline()  # about the machine
        rows = list(csv.DictReader(f))
    flops = next(1e9 * float(r["rate"]) for r in rows if r["work"] == STEP)
    memory = statistics.median(1e9 * float(r["peak"]) for r in rows if r["unit"] == "GB/s")
    with open(os.path.join(RESULTS, "NVIDIA-H100-80GB-HBM3-steps.txt"), encoding="utf-8") as f:
        gpu = f.read()
    of_step = gpu.split(f"== {GPU_STEP}\n")[1]
    gpu_flops = 1e12 * float(re.search(r"median of a step: .* (\d+) TFLOP/s", of_step)[1])
    gpu_memory = 1e9 * float(re.search(r"streaming copy ([\d.]+) GB/s", gpu)[1])
    return [Rank("two cores of a Zen 5, as measured", flops, memory),
            Rank("an H100, as measured, in bf16", gpu_flops, gpu_memory, parameter_bytes=2)]


def parameters(layers, channels, context=CONTEXT, vocab=VOCAB):
    """wte, wpe; per block two LayerNorms, four matrices and their biases; the last LayerNorm."""
    return (vocab + context) * channels + layers * (12 * channels**2 + 13 * channels) + 2 * channels


def flops_per_token(layers, channels):
    """As the program's: 6 per weight of a matrix, and attention's (gpt2_model.h)."""
    return 6 * (layers * 12 * channels**2 + VOCAB * channels) + 6 * layers * channels * CONTEXT


def sent_bytes(size, ranks, each=4):
    """By each rank, of the gradients; of the parameters, which take `each` bytes."""
    return each * size * (ranks - 1) / ranks


def round_seconds(sent, ranks, bandwidth, latency=LATENCY, overhead=OVERHEAD):
    return 3 * latency + (ranks - 1) * overhead + sent / bandwidth


def sum_seconds(size, ranks, bandwidth, memory, latency=LATENCY, overhead=OVERHEAD):
    rounds = math.ceil(size / ranks / max(1 << 14, (1 << 22) // (ranks - 1)))
    exchange = rounds * round_seconds(sent_bytes(size, ranks) / rounds, ranks, bandwidth, latency, overhead)
    return exchange + 12 * size * (ranks - 1) / ranks / memory


def gather_seconds(size, ranks, bandwidth, each=4, latency=LATENCY, overhead=OVERHEAD):
    return round_seconds(sent_bytes(size, ranks, each), ranks, bandwidth, latency, overhead)


def exchange_seconds(size, ranks, gigabits, rank):
    bandwidth = PAYLOAD * gigabits * 1e9 / 8
    small = 5 * round_seconds(0, ranks, bandwidth)
    gather = gather_seconds(size, ranks, bandwidth, rank.parameter_bytes)
    return sum_seconds(size, ranks, bandwidth, rank.memory) + gather + small


def share(rank, model, ranks, gigabits, batch=TOTAL_BATCH):
    """Of linear speed."""
    computing = batch / ranks * flops_per_token(*model) / rank.flops
    return computing / (computing + exchange_seconds(parameters(*model), ranks, gigabits, rank))


def batch_for(wanted, rank, model, ranks, gigabits):
    """The smallest total batch with this share of linear speed, in tokens: whole sequences on every rank."""
    computing = wanted / (1 - wanted) * exchange_seconds(parameters(*model), ranks, gigabits, rank)
    sequences = max(1, math.ceil(computing * rank.flops / flops_per_token(*model) / CONTEXT))
    return ranks * sequences * CONTEXT


def short(number):
    """With two digits, or all before the point."""
    return f"{number:.2g}" if number < 10 else f"{number:,.0f}"


def tables():
    lines = []
    for rank in machines():
        lines += [f"A rank is {rank.name}: {rank.flops / 1e9:,.0f} GFLOP/s, {rank.memory / 1e9:.0f} GB/s.", "",
                  "| model | ranks | " + " | ".join(f"{link} Gbit/s" for link in LINKS) + " |",
                  "|---|---:|" + "---:|" * len(LINKS)]
        for name, model in MODELS.items():
            for ranks in RANKS:
                cells = []
                for link in LINKS:
                    part, batch = share(rank, model, ranks, link), batch_for(WANTED, rank, model, ranks, link)
                    cells.append(f"{short(ranks * part)} × ({100 * part:.0f} %), {short(batch / 1e6)}")
                lines.append(f"| {name} | {ranks:,} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def draw(text):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams["svg.hashsalt"] = "scaling"  # the same numbers, the same file
    colors = dict(zip(LINKS, ("#d55e00", "#0072b2", "#009e73")))
    ranks = [2**i for i in range(1, 11)]
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axes, rank in zip(panels, machines()):
        for link in LINKS:
            for name, line in (("124M", "-"), ("1.5B", "--")):
                axes.plot(ranks, [100 * share(rank, MODELS[name], r, link) for r in ranks], line, color=colors[link],
                          label=f"{name}, {link} Gbit/s")
        axes.axhline(100 * WANTED, color="#8a8a8a", linewidth=0.8, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, [f"{r:,}" for r in ranks], fontsize=8)
        axes.set_ylim(0, 102)
        axes.set_yticks(range(0, 101, 20), [f"{y} %" for y in range(0, 101, 20)], fontsize=8)
        axes.set_xlabel(f"ranks, each {rank.name}")
        axes.grid(color="#d0d0d0", linewidth=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_title(f"Share of linear speed, {TOTAL_BATCH:,} tokens per step (model)", loc="left", fontsize=10)
    panels[0].legend(fontsize=8, frameon=False, loc="lower left")
    figure.tight_layout()
    figure.savefig(PICTURE, facecolor="white", metadata={"Date": None, "Creator": None, "Description": digest(text)})
    print(f"wrote {PICTURE}", file=sys.stderr)


def digest(text):
    return f"scaling_model.py sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def counted_bytes():
    """By rank and step: those that the program counts in a small run, and the model's."""
    layers, channels, context, vocab, ranks = 2, 384, 64, 5120, 4
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_ALLOW_RUN_AS_ROOT": "1",
               "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    here = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as out:
        run = subprocess.run(
            ["mpirun", "-n", str(ranks), os.path.join(ROOT, "train_gpt2"), "--out", os.path.join(out, "run"),
             "--data", os.path.join(ROOT, "data", "tinyshakespeare.txt"), "--layers", str(layers), "--heads", "6",
             "--channels", str(channels), "--context", str(context), "--vocab", str(vocab), "--batch", "1", "--seq",
             str(context), "--total-batch", str(ranks * context), "--steps", "2", "--optimizer", "adamw",
             "--eval-every", "0", "--save-every", "0", "--sample-every", "0", "--profile"],
            env=os.environ | as_root | here, capture_output=True, text=True)
    found = re.search(r"sent per step by each rank: ([\d.]+) MiB", run.stdout)
    if not found:
        raise ValueError(f"{run.stdout}{run.stderr}\nthe program printed no number of bytes")
    return float(found[1]) * 2**20, 2 * sent_bytes(parameters(layers, channels, context, vocab), ranks)


def check(text):
    faults = []
    with open(DOCUMENT, encoding="utf-8") as f:
        if text not in f.read():
            faults.append(f"{DOCUMENT}: not the tables that this script prints")
    with open(PICTURE, encoding="utf-8") as f:
        if digest(text) not in f.read():
            faults.append(f"{PICTURE}: drawn from other numbers; run this script")
    counted, expected = counted_bytes()
    if not abs(counted - expected) <= 0.01 * expected:  # small messages are not in the formula
        faults.append(f"the program counts {counted:.0f} bytes per step and rank, the model {expected:.0f}")
    for fault in faults:
        print(f"scaling_model.py: {fault}", file=sys.stderr)
    print(f"{3 - len(faults)} passed, {len(faults)} failed")
    return 1 if faults else 0


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(f"scaling_model.py: {sys.argv[1]}: found another argument than --check", file=sys.stderr)
        return 2
    text = tables()
    if sys.argv[1:]:
        return check(text)
    print(text)
    draw(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Measures two ranks of train_gpt2 over a slow network, beside what scaling_model.py computes. Two network namespaces
are the machines. Needs root, ip, tc and Open MPI; nothing outside the namespaces changes.

    check_network.py [PROGRAM]      ./train_gpt2 if none is given

Where there is no delay the link is a veth pair. A delay is made here and not by tc's netem, which not every kernel has:
packets between two tun devices wait in this script. tc's tbf limits both. The link's own time of flight is measured
beside it: half of a byte's way there and back by TCP.
"""

import collections
import fcntl
import os
import re
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import scaling_model

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAMES, ADDRESSES, DEVICE = ("train-a", "train-b"), ("10.99.0.1", "10.99.0.2"), "wire"
LINKS = [(1, 0), (1, 0.1), (1, 1), (10, 0), (10, 0.1), (10, 1)]  # Gbit/s, milliseconds each way
ROUNDS = 3
MODEL = scaling_model.MODELS["124M"]
OPTIONS = ("--model d12 --optimizer adamw --batch 1 --seq 16 --total-batch 32 --steps 4 --eval-every 0 --save-every 0 "
           "--sample-every 0 --profile").split()


def run(*command):
    subprocess.run(command, check=True)


def inside(name, *command):
    """The command's words in a namespace, where the machine has the namespace's name."""
    return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name, *command]


def delete_namespaces():
    for name in NAMES:
        if os.path.exists(f"/run/netns/{name}"):
            run("ip", "netns", "delete", name)


def tun_in(name):
    """A file whose reads and writes are the packets of a new tun device in a namespace."""
    read_end, write_end = socket.socketpair()
    child = os.fork()
    if child == 0:
        with open(f"/run/netns/{name}") as namespace:
            if hasattr(os, "setns"):
                os.setns(namespace.fileno(), 0)
            else:
                import ctypes
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
                    os._exit(1)
        file = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(file, 0x400454CA, struct.pack("16sH22x", DEVICE.encode(), 0x1001))  # TUNSETIFF: TUN, NO_PI
        socket.send_fds(write_end, [b"x"], [file])
        os._exit(0)
    file = socket.recv_fds(read_end, 1, 1)[1][0]
    os.waitpid(child, 0)
    return file


def pass_on(source, target, seconds):
    """Writes each packet of `source` to `target` so many seconds after it was read."""
    os.set_blocking(source, False)
    waiting = collections.deque()
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            try:
                os.write(target, waiting.popleft()[1])
            except OSError:
                pass  # the device is not up yet
        select.select([source], [], [], max(0, waiting[0][0] - now) if waiting else None)
        try:
            while len(packet := os.read(source, 1 << 16)):
                waiting.append((time.monotonic() + seconds, packet))
                if len(waiting) % 8 == 0:
                    break
        except BlockingIOError:
            pass


def make_link(gigabits, milliseconds):
    """Returns the processes that delay its packets."""
    delete_namespaces()
    for name in NAMES:
        run("ip", "netns", "add", name)
    delays = []
    if milliseconds:
        files = [tun_in(name) for name in NAMES]
        for source, target in (files, files[::-1]):
            child = os.fork()
            if child == 0:
                pass_on(source, target, milliseconds / 1e3)
            delays.append(child)
        for file in files:
            os.close(file)
    else:
        run("ip", "link", "add", DEVICE, "netns", NAMES[0], "type", "veth", "peer", "name", DEVICE, "netns", NAMES[1])
    for name, address in zip(NAMES, ADDRESSES):
        if milliseconds:
            run("ip", "-n", name, "link", "set", DEVICE, "mtu", "65000", "txqueuelen", "4000")
        run("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
        run("ip", "-n", name, "link", "set", DEVICE, "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", f"{gigabits}gbit", "burst", "256kb",
            "latency", "20ms")
    return delays


ECHO = """
import socket, sys, time
if sys.argv[1] == "serve":
    server = socket.create_server((sys.argv[2], 5000))
    print("ready", flush=True)
    peer = server.accept()[0]
else:
    peer = socket.create_connection((sys.argv[2], 5000))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(200):
    begin = time.perf_counter()
    if sys.argv[1] != "serve":
        peer.send(b"x")
    if not peer.recv(1):
        break
    if sys.argv[1] == "serve":
        peer.send(b"x")
    times.append(time.perf_counter() - begin)
if sys.argv[1] != "serve":
    print(sorted(times)[100] / 2)
"""


def flight_seconds():
    """Half the median time of a byte's way there and back."""
    def peer(name, what):
        return subprocess.Popen(inside(name, sys.executable, "-c", ECHO, what, ADDRESSES[0]), stdout=subprocess.PIPE,
                                text=True)
    server = peer(NAMES[0], "serve")
    server.stdout.readline()
    client = peer(NAMES[1], "ask")
    seconds = float(client.communicate()[0])
    server.wait()
    return seconds


def times(program):
    """The seconds of the sum and of the gather per step, and the memory's bandwidth, in a run of two ranks."""
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as out:
        mpi = ["mpirun", "--host", ",".join(NAMES), "--bind-to", "none", "--mca", "btl", "tcp,self", "--mca",
               "plm_rsh_agent", f"{os.path.abspath(__file__)} --enter"]
        for part in ("btl", "oob"):
            mpi += ["--mca", f"{part}_tcp_if_include", DEVICE]
        data = os.path.join(ROOT, "data", "tinyshakespeare.txt")
        done = subprocess.run(inside(NAMES[0], *mpi, program, "--data", data, "--vocab", "50257", "--out",
                                     os.path.join(out, "run"), *OPTIONS), env=os.environ | as_root, text=True,
                              capture_output=True)
    found = [re.search(pattern, done.stdout) for pattern in
             (r"sum over ranks +([\d.]+) ms", r"gather over ranks +([\d.]+) ms", r"streaming copy ([\d.]+) GB/s")]
    if not all(found):
        raise ValueError(f"{done.stdout}{done.stderr}\nthe program printed no times of an exchange")
    return [float(m[1]) * unit for m, unit in zip(found, (1e-3, 1e-3, 1e9))]


def measure(program):
    size = scaling_model.parameters(*MODEL)
    print("| link | time of flight | sum: measured | model | gather: measured | model |\n|---|---:|---:|---:|---:|---:|")
    for gigabits, milliseconds in LINKS:
        delays = make_link(gigabits, milliseconds)
        try:
            flight = flight_seconds()
            runs = list(zip(*(times(program) for _ in range(ROUNDS))))
        finally:
            for child in delays:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        bandwidth = scaling_model.PAYLOAD * gigabits * 1e9 / 8
        memory = statistics.median(runs[2])
        modelled = (scaling_model.sum_seconds(size, 2, bandwidth, memory, latency=flight),
                    scaling_model.gather_seconds(size, 2, bandwidth, latency=flight))
        cells = []
        for measured, model in zip(runs, modelled):
            spread = f"{1e3 * min(measured):,.0f} to {1e3 * max(measured):,.0f}"
            cells += [f"{1e3 * statistics.median(measured):,.0f} ms ({spread})", f"{1e3 * model:,.0f} ms"]
        delay = f", {milliseconds} ms added each way" if milliseconds else ""
        print(f"| {gigabits} Gbit/s{delay} | {1e3 * flight:.2f} ms | {' | '.join(cells)} |", flush=True)


def main():
    if sys.argv[1:2] == ["--enter"]:  # mpirun's way to another machine: NAME COMMAND…, for a shell
        os.execvp("ip", inside(sys.argv[2], "sh", "-c", " ".join(sys.argv[3:])))
    program = os.path.abspath(sys.argv[1] if sys.argv[1:] else os.path.join(ROOT, "train_gpt2"))
    if len(sys.argv) > 2 or not os.access(program, os.X_OK):
        print(f"check_network.py: {program}: found no program; run make train_gpt2", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not before the namespaces are gone
    try:
        measure(program)
    except (OSError, ValueError, subprocess.CalledProcessError) as e:
        print(f"check_network.py: {e}", file=sys.stderr)
        return 1
    finally:
        delete_namespaces()
    return 0


if __name__ == "__main__":
    sys.exit(main())

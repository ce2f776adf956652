#!/usr/bin/env bash
# Trains on several machines by Open MPI's mpirun: starts the run in --out, or resumes it if it exists. mpirun logs in
# by ssh, without a password. The checkout and --out must have the same paths on all machines, on a shared file system.
#   scripts/train_hosts.sh HOSTS --out DIR [OPTION…]                            OPTION: of train_gpt2
#   scripts/train_hosts.sh a:2,b:2 --out out/d12 --model d12 --data big.txt     two ranks on each of two machines
# HOSTS is such a list, or a file with one line per machine: "a slots=2". The number of ranks must be a power of two.
# CORES=N binds each rank to N cores of its own; without it, the ranks of a machine share its cores evenly.
# PROGRAM=./train_gpt2cu trains on GPUs, with one rank for each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "scripts/train_hosts.sh: $1" >&2
    exit 2
}
hosts=${1:-}
[[ $hosts && $hosts != -* ]] || fail "no hosts; usage: scripts/train_hosts.sh a:2,b:2 --out DIR [OPTION…]"
shift
[[ ${CORES:-1} =~ ^[1-9][0-9]*$ ]] || fail "CORES: $CORES is not a number of cores"
command -v mpirun >/dev/null || fail "mpirun is missing; install openmpi-bin on all machines"
program=${PROGRAM:-./train_gpt2}
[[ -x $program ]] || fail "$program is missing; run make ${program##*/}"
# shellcheck source=scripts/resume_options.sh
. scripts/resume_options.sh "$@" || fail "no --out DIR; give a directory that all machines share"
machines=(--host "$hosts")
[[ ! -f $hosts ]] || machines=(--hostfile "$hosts")
binding=(--bind-to none)
[[ ! ${CORES:-} ]] || binding=(--map-by "slot:PE=$CORES" --bind-to core)
exec mpirun "${machines[@]}" "${binding[@]}" "$program" "${options[@]}"

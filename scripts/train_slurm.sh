#!/usr/bin/env bash
# Trains on the nodes of a Slurm cluster: starts the run in --out, or resumes it if it exists. The job saves and
# requeues itself before its time limit, and before preemption if the partition has a GraceTime. Submit it in the
# checkout, which all nodes must share:
#   sbatch [SBATCH-OPTION…] scripts/train_slurm.sh --out DIR [OPTION…]     OPTION: of train_gpt2
#   sbatch --nodes=4 --time=12:00:00 scripts/train_slurm.sh --out out/d12 --model d12 --data big.txt
# PROGRAM=./train_gpt2cu trains on GPUs, with one task for each: --ntasks-per-node=8 --gpus-per-node=8.
# scancel --signal=USR1 JOB saves, with USR2 it saves and requeues, and with INT it saves and ends. scancel JOB without
# a signal may end the run before it has saved.

# These are defaults, which options of sbatch replace. The number of ranks (tasks) must be a power of two, and each has
# --cpus-per-task threads. On nodes with several sockets, try one rank per socket.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
# Use one thread per core, also where Slurm counts hyperthreads as CPUs.
#SBATCH --hint=nomultithread
#SBATCH --time=04:00:00
# Slurm sends SIGUSR2 to all ranks this many seconds before the time limit. They finish the step, save and exit with
# status 140, so allow for one step and one checkpoint. With B:USR2 only this script would get the signal.
#SBATCH --signal=USR2@300
# Slurm may start the job again after preemption or the loss of a node, and this script may requeue it.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --job-name=train_gpt2
#SBATCH --output=train_gpt2-%j.log
set -euo pipefail

fail() {
    echo "scripts/train_slurm.sh: $1" >&2
    exit 2
}
[[ ${SLURM_JOB_ID:-} ]] || fail "not in a Slurm job; run sbatch scripts/train_slurm.sh --out DIR [OPTION…]"
program=${PROGRAM:-./train_gpt2}
[[ -x $program ]] || fail "$PWD/$program is missing; run make ${program##*/}, and sbatch in the checkout's directory"
# shellcheck source=scripts/resume_options.sh
. scripts/resume_options.sh || fail "no --out DIR; give a directory that all nodes share"

# The interface by which the ranks find each other: pmix, or pmi2 if the MPI was built for it (see srun --mpi=list).
export SLURM_MPI_TYPE=${SLURM_MPI_TYPE:-pmix}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
before=$(readlink "$out/latest" || true)
status=0
# srun no longer takes --cpus-per-task from sbatch since Slurm 22.05. If a rank dies, Slurm ends the others.
srun --cpus-per-task="$OMP_NUM_THREADS" --kill-on-bad-exit=1 "$program" "${options[@]}" || status=$?
# 140 is SIGUSR2. 143 is SIGTERM, which only the ranks get before preemption, if the partition has a GraceTime. scancel
# sends SIGTERM to this script too, and ends it.
((status == 140 || status == 143)) || exit "$status"
if ((status == 140)) && [[ $(readlink "$out/latest" || true) == "$before" ]]; then
    fail "stopped before a step was saved, not requeued; increase --time, or decrease the seconds of --signal"
fi
scontrol requeue "$SLURM_JOB_ID"

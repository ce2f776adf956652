// How the ranks of a run are started, and how they fail together.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/parallel/ranks.h"

// The ranks that a launcher of MPI started (mpirun, mpiexec, srun), or this process alone if none did. Of all ranks but
// the first, standard output is discarded. Throws InputError if a launcher started several processes that cannot be the
// ranks of one run: this program was built without MPI, or they belong to another MPI.
std::unique_ptr<Ranks> start_ranks();

// Whether start_ranks() can start several: the library with MPI, train_gpt2_mpi.so, lies beside the program.
bool has_mpi();

// Runs f on every rank and waits until all have. If it throws on some, RankFailed is thrown on all, with a message on
// the lowest of those. ConnectionLost passes through on its rank alone. For one process alone this is f().
void on_all(Ranks& ranks, const std::function<void()>& f);
// on_all, but rank 0 is done before the others begin: it writes files that they read.
void on_first_then_others(Ranks& ranks, const std::function<void()>& f);

// Starts the ranks and runs a command on all of them. What it throws on one rank alone, outside on_all, is printed with
// that rank's name, and ends all ranks.
int on_ranks(const std::function<int(Ranks&)>& command);

// What the environment says of the command that started this process as one of several.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

// Open MPI sets OMPI_…, MPICH and Slurm's pmi2 PMI_…, and Slurm's pmix and PRRTE PMIX_RANK, without the number of
// processes.
struct Launcher {
    // The number in an environment variable, or -1.
    static int64_t number_of(const char* variable) {
        const char* const text = std::getenv(variable);
        return text ? std::atoll(text) : -1;
    }

    int64_t rank = std::max({number_of("OMPI_COMM_WORLD_RANK"), number_of("PMI_RANK"), number_of("PMIX_RANK")});
    int64_t count = std::max({number_of("OMPI_COMM_WORLD_SIZE"), number_of("PMI_SIZE"),
                              number_of("PMIX_RANK") < 0 ? -1 : number_of("SLURM_STEP_NUM_TASKS")});
    int64_t of_slurm = number_of("SLURM_STEP_NUM_TASKS");
    bool known() const { return rank >= 0; }
    // In a Slurm job mpirun starts its own processes by srun. Open MPI's and MPICH's then set one of these.
    bool is_srun() const {
        return of_slurm > 0 && std::max(number_of("OMPI_COMM_WORLD_RANK"), number_of("MPI_LOCALRANKID")) < 0;
    }
    std::string name() const { return is_srun() ? "srun" : "mpirun"; }
};

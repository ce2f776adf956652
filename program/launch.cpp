#include "program/launch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "device/platform.h"
#include "io/file/file.h"
#include "program/exit_status.h"

namespace {

constexpr const char* library_name = "train_gpt2_mpi.so";

// Beside the program, also where that was started by the dynamic loader.
std::string library_path() {
    const auto beside = [](const std::string& program) {
        return (std::filesystem::path(program).parent_path() / library_name).string();
    };
    Dl_info started{};
    const std::string path = beside(platform::executable_path());
    if (path_exists(path) || dladdr(reinterpret_cast<const void*>(&has_mpi), &started) == 0) return path;
    return beside(started.dli_fname);
}

// The number in an environment variable, or -1.
int64_t number_of(const char* variable) {
    const char* const text = std::getenv(variable);
    return text ? std::atoll(text) : -1;
}

// What the environment says of the launcher. Open MPI sets OMPI_…, MPICH and Slurm's pmi2 PMI_…, and Slurm's pmix and
// PRRTE PMIX_RANK, without the number of processes.
struct Launcher {
    int64_t rank = std::max({number_of("OMPI_COMM_WORLD_RANK"), number_of("PMI_RANK"), number_of("PMIX_RANK")});
    int64_t count = std::max({number_of("OMPI_COMM_WORLD_SIZE"), number_of("PMI_SIZE"),
                              number_of("PMIX_RANK") < 0 ? -1 : number_of("SLURM_STEP_NUM_TASKS")});
    int64_t of_slurm = number_of("SLURM_STEP_NUM_TASKS");
    bool known() const { return rank >= 0; }
};

// One process of several prints the reason for which none can start.
[[noreturn]] void refuse(int64_t rank, const std::string& reason) { throw RankFailed(2, rank > 0 ? "" : reason); }

std::unique_ptr<Ranks> load_mpi(const Launcher& launcher) {
    const std::string path = library_path(), many = launcher.count > 1 ? std::to_string(launcher.count) + " " : "";
    if (!path_exists(path))
        refuse(launcher.rank, "mpirun: started " + many + "processes, but this program was built without MPI (" + path +
                                  " is missing); install libopenmpi-dev, or another MPI with mpicxx, and run make "
                                  "again, or start one process without mpirun");
    // Global, because the parts of Open MPI that it loads itself look for its symbols there.
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        refuse(launcher.rank, path + ": loading failed: " + dlerror() + "; install that MPI, or rebuild with make");
    auto* const start = reinterpret_cast<Ranks* (*)()>(dlsym(library, "start_mpi"));
    if (!start) refuse(launcher.rank, path + ": not this program's library; rebuild with make");
    return std::unique_ptr<Ranks>(start());
}

}  // namespace

bool has_mpi() { return path_exists(library_path()); }

std::unique_ptr<Ranks> start_ranks() {
    const Launcher launcher;
    if (!launcher.known()) {
        if (launcher.of_slurm > 1)
            refuse(number_of("SLURM_PROCID"),
                   "srun: started " + std::to_string(launcher.of_slurm) +
                       " processes that do not know of each other; start them with srun "
                       "--mpi=pmix (srun --mpi=list shows what this Slurm has), or by mpirun");
        return std::make_unique<Alone>();
    }
    if (launcher.count == 1) return std::make_unique<Alone>();
    std::unique_ptr<Ranks> ranks = load_mpi(launcher);
    if (launcher.count > 1 && ranks->count() != launcher.count)
        refuse(launcher.rank, "mpirun: started " + std::to_string(launcher.count) +
                                  " processes that do not know of each other: it belongs to another MPI than the one "
                                  "that this program was built with; use that one's mpirun, or run make with this "
                                  "one's mpicxx first in PATH");
    if (!ranks->first())
        if (const int null = open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0) {
            dup2(null, STDOUT_FILENO);
            close(null);
        }
    return ranks;
}

void on_all(Ranks& ranks, const std::function<void()>& f) {
    if (ranks.count() == 1) return f();
    Failure mine{0, ""};
    try {
        f();
    } catch (const std::exception&) {
        mine = current_failure();
    }
    const std::vector<int> all = all_gather(ranks, mine.status);
    const auto failed = std::ranges::find_if(all, [](int status) { return status != 0; });
    if (failed == all.end()) return;
    if (failed - all.begin() != ranks.rank()) throw RankFailed(*failed, "");
    throw RankFailed(mine.status, (ranks.first() ? "" : ranks.name(ranks.rank()) + ": ") + mine.message);
}

void on_first_then_others(Ranks& ranks, const std::function<void()>& f) {
    on_all(ranks, [&] {
        if (ranks.first()) f();
    });
    on_all(ranks, [&] {
        if (!ranks.first()) f();
    });
}

int on_ranks(const std::function<int(Ranks&)>& command) {
    const std::unique_ptr<Ranks> ranks = start_ranks();
    if (ranks->count() == 1) return command(*ranks);
    try {
        return command(*ranks);
    } catch (const RankFailed& failure) {
        // Now, because mpirun ends all ranks when one of them has left MPI with such a status.
        if (*failure.what()) print_error(failure.what());
        return failure.status;
    } catch (const std::exception&) {
        const Failure failure = current_failure();
        print_error(ranks->name(ranks->rank()) + ": " + failure.message);
        ranks->abort(failure.status);
        return failure.status;
    }
}

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
#include "program/launcher.h"

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

// One process of several prints the reason for which none can start.
[[noreturn]] void refuse(int64_t rank, const std::string& reason) { throw RankFailed(2, rank > 0 ? "" : reason); }

// Slurm has started processes that do not know of each other.
[[noreturn]] void refuse_strangers(int64_t rank, int64_t count) {
    refuse(rank, "srun: started " + std::to_string(count) +
                     " processes that do not know of each other; start them with srun "
                     "--mpi=pmix (srun --mpi=list shows what this Slurm has), or by mpirun");
}

std::unique_ptr<Ranks> load_mpi(const Launcher& launcher) {
    const std::string path = library_path(), many = launcher.count > 1 ? std::to_string(launcher.count) + " " : "";
    if (!path_exists(path))
        refuse(launcher.rank, launcher.name() + ": started " + many +
                                  "processes, but this program was built without MPI (" + path +
                                  " is missing); install libopenmpi-dev, or another MPI with mpicxx, and rebuild with "
                                  "make, or start one process without " +
                                  launcher.name());
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
        if (launcher.of_slurm > 1) refuse_strangers(Launcher::number_of("SLURM_PROCID"), launcher.of_slurm);
        return std::make_unique<Alone>();
    }
    if (launcher.count == 1) return std::make_unique<Alone>();
    std::unique_ptr<Ranks> ranks = load_mpi(launcher);
    if (launcher.count > 1 && ranks->count() != launcher.count) {
        if (launcher.is_srun()) refuse_strangers(launcher.rank, launcher.count);
        refuse(launcher.rank, "mpirun: started " + std::to_string(launcher.count) +
                                  " processes that do not know of each other: it belongs to another MPI than the one "
                                  "that this program was built with; use that one's mpirun, or run make with this "
                                  "one's mpicxx first in PATH");
    }
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
    } catch (const ConnectionLost&) {
        throw;
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
    // What is to be read is written before a rank leaves MPI, because mpirun ends all ranks when one of them has left
    // it with another status than 0.
    try {
        const int status = command(*ranks);
        std::fflush(stdout);
        return status;
    } catch (const RankFailed& failure) {
        if (*failure.what()) print_error(failure.what());
        std::fflush(stdout);
        return failure.status;
    } catch (const std::exception&) {
        const Failure failure = current_failure();
        print_error(ranks->name(ranks->rank()) + ": " + failure.message);
        ranks->abort(failure.status);
        return failure.status;
    }
}

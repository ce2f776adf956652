// The ranks of MPI. This file is a library of its own, train_gpt2_mpi.so, which the program loads only if a launcher of
// MPI started it (device/parallel/launch.cpp): a run without MPI does not wait for MPI's libraries.
#include <mpi.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "device/parallel/ranks.h"

namespace {

using Clock = std::chrono::steady_clock;

class Mpi final : public Ranks {
public:
    Mpi() {
        int provided = 0, rank = 0, count = 1, length = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &count);
        rank_ = rank, count_ = count;
        std::array<char, MPI_MAX_PROCESSOR_NAME + 1> host{};
        MPI_Get_processor_name(host.data(), &length);
        std::vector<char> all(host.size() * static_cast<size_t>(count));
        MPI_Allgather(host.data(), static_cast<int>(host.size()), MPI_CHAR, all.data(), static_cast<int>(host.size()),
                      MPI_CHAR, MPI_COMM_WORLD);
        hosts_.clear();
        for (int r = 0; r < count; ++r) hosts_.emplace_back(all.data() + static_cast<size_t>(r) * host.size());
    }
    ~Mpi() override { MPI_Finalize(); }

    void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
        requests_.clear();
        peers_.clear();
        // Sends first. Each announces a large message, and a receive requests what was announced. Over TCP an
        // announcement or a request that follows a message's data waits until they are sent: with the receives first,
        // the two directions between two ranks took turns, at half the speed.
        for (const Message& m : sends) {
            each_piece(m, [&](char* data, int bytes, int peer) {
                MPI_Isend(data, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, new_request(peer));
            });
            sent_bytes += static_cast<double>(m.bytes);
        }
        for (const Message& m : receives)
            each_piece(m, [&](char* data, int bytes, int peer) {
                MPI_Irecv(data, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, new_request(peer));
            });
        wait();
    }

    void abort(int status) override { MPI_Abort(MPI_COMM_WORLD, status); }

private:
    // MPI counts in ints, so a large message is several.
    template <class Use>
    static void each_piece(const Message& m, const Use& use) {
        constexpr int64_t most = 1 << 30;
        for (int64_t done = 0; done < m.bytes; done += most)
            use(static_cast<char*>(m.data) + done, static_cast<int>(std::min(most, m.bytes - done)),
                static_cast<int>(m.rank));
    }
    MPI_Request* new_request(int peer) {
        peers_.push_back(peer);
        return &requests_.emplace_back(MPI_REQUEST_NULL);
    }

    // MPI_Waitall, but with the processor left to others who want it, and a warning after a minute.
    void wait() {
        const auto begin = Clock::now();
        int64_t minutes = 0;
        bool warned = false;
        for (int64_t tries = 0;; ++tries) {
            int done = 0;
            MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
            if (done) break;
            sched_yield();
            if (tries % 64 != 0) continue;
            const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
            if (seconds > 1) {  // not the exchange of a step: rank 0 saves or samples, or a rank has stopped
                const timespec pause{0, 1'000'000};
                nanosleep(&pause, nullptr);
            }
            if (seconds > 60 * static_cast<double>(minutes + 1)) warned |= warn_of_late(++minutes);
        }
        if (warned) std::fprintf(stderr, "train_gpt2: %s goes on\n", name(rank_).c_str());
    }

    // Of the ranks that wait for the same one, the lowest prints. Returns whether this rank has.
    bool warn_of_late(int64_t minutes) const {
        for (size_t i = 0; i < requests_.size(); ++i) {
            int done = 0;
            if (requests_[i] != MPI_REQUEST_NULL)
                MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
            else
                done = 1;
            if (done || rank_ != (peers_[i] == 0 ? 1 : 0)) continue;
            std::fprintf(stderr, "train_gpt2: %s has waited for %s for %lld min; it is busy, stopped or cut off\n",
                         name(rank_).c_str(), name(peers_[i]).c_str(), static_cast<long long>(minutes));
            return true;
        }
        return false;
    }

    std::vector<MPI_Request> requests_;
    std::vector<int> peers_;  // of each request
};

}  // namespace

extern "C" Ranks* start_mpi() { return new Mpi; }

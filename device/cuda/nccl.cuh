// What ranks on GPUs send each other from device memory, by NCCL: over NVLink, PCIe or a network. NCCL is loaded when
// several ranks start, so that one process alone runs without it. The emulator has its own
// (dev/emulator/nccl_on_cpu.h).
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "device/cuda/common.cuh"
#include "device/parallel/ranks.h"

#if __has_include(<nccl.h>) && !defined(NO_NCCL)  // make NCCL=0
#include <nccl.h>

// The functions of NCCL that are used here.
struct NcclLibrary {
    decltype(&ncclGetUniqueId) get_unique_id = nullptr;
    decltype(&ncclCommInitRank) comm_init_rank = nullptr;
    decltype(&ncclCommDestroy) comm_destroy = nullptr;
    decltype(&ncclCommAbort) comm_abort = nullptr;
    decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
    decltype(&ncclGroupStart) group_start = nullptr;
    decltype(&ncclGroupEnd) group_end = nullptr;
    decltype(&ncclSend) send = nullptr;
    decltype(&ncclRecv) receive = nullptr;
    decltype(&ncclGetErrorString) error_string = nullptr;
    decltype(&ncclGetLastError) last_error = nullptr;

    // Throws std::runtime_error if there is none.
    NcclLibrary() {
#ifdef __CUDACC__
        void* const library = dlopen("libnccl.so.2", RTLD_NOW);
        if (!library) throw std::runtime_error(dlerror());
        const auto find = [&]<class F>(F& function, const char* name) {
            function = reinterpret_cast<F>(dlsym(library, name));
            if (!function) throw std::runtime_error(dlerror());
        };
        find(get_unique_id, "ncclGetUniqueId");
        find(comm_init_rank, "ncclCommInitRank");
        find(comm_destroy, "ncclCommDestroy");
        find(comm_abort, "ncclCommAbort");
        find(comm_get_async_error, "ncclCommGetAsyncError");
        find(group_start, "ncclGroupStart");
        find(group_end, "ncclGroupEnd");
        find(send, "ncclSend");
        find(receive, "ncclRecv");
        find(error_string, "ncclGetErrorString");
        find(last_error, "ncclGetLastError");
#else
        get_unique_id = ncclGetUniqueId, comm_init_rank = ncclCommInitRank, comm_destroy = ncclCommDestroy;
        comm_abort = ncclCommAbort, comm_get_async_error = ncclCommGetAsyncError;
        group_start = ncclGroupStart, group_end = ncclGroupEnd, send = ncclSend, receive = ncclRecv;
        error_string = ncclGetErrorString, last_error = ncclGetLastError;
#endif
    }
};

// The connection of this rank's GPU, the current device, with those of the other ranks. It has a stream of its own, so
// that the GPU computes while it sends and receives.
struct Nccl {
    // All ranks construct it together.
    Nccl(const NcclLibrary& library, Ranks& ranks) : nccl_(library) {
        ncclUniqueId id{};
        if (ranks.first()) check(nccl_.get_unique_id(&id), "ncclGetUniqueId");
        check(nccl_.comm_init_rank(&communicator_, static_cast<int>(ranks.count()), from_first(ranks, id),
                                   static_cast<int>(ranks.rank())),
              "ncclCommInitRank");
    }
    Nccl(const Nccl&) = delete;
    ~Nccl() {
        if (communicator_) nccl_.comm_destroy(communicator_);
    }

    // Starts Ranks::exchange() of device memory after all work that `compute` has been given so far.
    void start(std::span<const Message> sends, std::span<const Message> receives, cudaStream_t compute) {
        cuda_check(cudaEventRecord(computed_.event, compute), "cudaEventRecord");
        cuda_check(cudaStreamWaitEvent(exchanges_.stream, computed_.event), "cudaStreamWaitEvent");
        check(nccl_.group_start(), "ncclGroupStart");
        ncclResult_t result = ncclSuccess;
        const auto add_all = [&](std::span<const Message> messages, auto send_or_receive) {
            for (const Message& m : messages)
                if (m.bytes > 0 && result == ncclSuccess)
                    result = send_or_receive(m.data, static_cast<size_t>(m.bytes), ncclInt8, static_cast<int>(m.rank),
                                             communicator_, exchanges_.stream);
        };
        add_all(sends, nccl_.send);
        add_all(receives, nccl_.receive);
        const ncclResult_t of_group = nccl_.group_end();  // after an error too: a group must end before the abort
        check(result, "ncclSend or ncclRecv");
        check(of_group, "ncclGroupEnd");
        cuda_check(cudaEventRecord(exchanged_[started_++ % 2].event, exchanges_.stream), "cudaEventRecord");
    }
    // Lets `compute` wait for the first exchange that is not finished. There may be two of them.
    void finish(cudaStream_t compute) {
        cuda_check(cudaStreamWaitEvent(compute, exchanged_[finished_++ % 2].event), "cudaStreamWaitEvent");
    }

    // Throws ConnectionLost if the connection has failed, so that what was exchanged may never arrive.
    void check() {
        ncclResult_t state = ncclSuccess;
        check(nccl_.comm_get_async_error(communicator_, &state), "ncclCommGetAsyncError");
        check(state, "NCCL");
    }

private:
    void check(ncclResult_t result, const char* what) {
        if (result == ncclSuccess || result == ncclInProgress) return;
        const std::string detail = nccl_.last_error(communicator_);
        // Now, because all that is destroyed before the error is printed frees memory: cudaFree waits for the GPU, and
        // the GPU waits for the lost rank until the abort.
        if (communicator_) nccl_.comm_abort(std::exchange(communicator_, nullptr));
        throw ConnectionLost(std::string(what) + ": " + nccl_.error_string(result) +
                             (detail.empty() ? "" : " (" + detail + ")") + "; NCCL_DEBUG=INFO prints more");
    }

    const NcclLibrary nccl_;
    CudaStream exchanges_;
    CudaEvent computed_, exchanged_[2];
    size_t started_ = 0, finished_ = 0;
    ncclComm_t communicator_ = nullptr;
};

#else

struct NcclLibrary {
    NcclLibrary() { throw std::runtime_error("built without it: there was no nccl.h, or make NCCL=0"); }
};
struct Nccl {
    Nccl(const NcclLibrary&, Ranks&) {}
    void start(std::span<const Message>, std::span<const Message>, cudaStream_t) {}
    void finish(cudaStream_t) {}
    void check() {}
};

#endif

// Says on standard error that a rank waits for the others: every minute, and once when it no longer does. NCCL does not
// tell which one is late. Ranks 0 and 1 speak: whichever is late, one of them waits, and all others would say the same.
class LateRanks {
public:
    explicit LateRanks(const Ranks& ranks) : name_(ranks.name(ranks.rank())), speaks_(ranks.rank() < 2) {}
    void waited(double seconds) {
        if (!speaks_) return;
        if (seconds > 60 * static_cast<double>(minutes_ + 1))
            std::fprintf(stderr,
                         "train_gpt2: %s has waited for the other GPUs for %lld min; one is busy, stopped or cut off\n",
                         name_.c_str(), static_cast<long long>(++minutes_));
        else if (minutes_ > 0 && seconds < 60) {
            std::fprintf(stderr, "train_gpt2: %s goes on\n", name_.c_str());
            minutes_ = 0;
        }
    }

private:
    std::string name_;
    bool speaks_;
    int64_t minutes_ = 0;
};

inline void start_exchange(Cuda& dev, Ranks& ranks, std::span<const Message> sends, std::span<const Message> receives) {
    if (!dev.check_ranks)
        dev.check_ranks = [nccl = ranks.nccl, late = LateRanks(ranks)](double seconds) mutable {
            nccl->check();
            late.waited(seconds);
        };
    ranks.nccl->start(sends, receives, dev.stream);
    for (const Message& m : sends) ranks.sent_bytes += static_cast<double>(m.bytes);
}
inline void finish_exchange(Cuda& dev, Ranks& ranks) { ranks.nccl->finish(dev.stream); }

// What ranks on GPUs send each other from device memory, by NCCL: over NVLink, PCIe or a network. NCCL is loaded when
// several ranks start, so that one process alone runs without it. The emulator has its own
// (dev/emulator/nccl_on_cpu.h).
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "device/cuda/common.cuh"
#include "device/parallel/ranks.h"

#if __has_include(<nccl.h>) && !defined(NO_NCCL)  // make NCCL=0
#include <nccl.h>

// The functions of NCCL that are used here.
struct NcclLibrary {
    decltype(&ncclGetUniqueId) get_unique_id = nullptr;
    decltype(&ncclCommInitRank) comm_init_rank = nullptr;
    decltype(&ncclCommDestroy) comm_destroy = nullptr;
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
        find(group_start, "ncclGroupStart");
        find(group_end, "ncclGroupEnd");
        find(send, "ncclSend");
        find(receive, "ncclRecv");
        find(error_string, "ncclGetErrorString");
        find(last_error, "ncclGetLastError");
#else
        get_unique_id = ncclGetUniqueId, comm_init_rank = ncclCommInitRank, comm_destroy = ncclCommDestroy;
        group_start = ncclGroupStart, group_end = ncclGroupEnd, send = ncclSend, receive = ncclRecv;
        error_string = ncclGetErrorString, last_error = ncclGetLastError;
#endif
    }
};

// The connection of this rank's GPU, the current device, with those of the other ranks.
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
    ~Nccl() { nccl_.comm_destroy(communicator_); }

    // Ranks::exchange() on a stream; the messages are in device memory.
    void exchange(std::span<const Message> sends, std::span<const Message> receives, cudaStream_t stream) {
        check(nccl_.group_start(), "ncclGroupStart");
        for (const Message& m : sends)
            if (m.bytes > 0)
                check(nccl_.send(m.data, static_cast<size_t>(m.bytes), ncclInt8, static_cast<int>(m.rank),
                                 communicator_, stream),
                      "ncclSend");
        for (const Message& m : receives)
            if (m.bytes > 0)
                check(nccl_.receive(m.data, static_cast<size_t>(m.bytes), ncclInt8, static_cast<int>(m.rank),
                                    communicator_, stream),
                      "ncclRecv");
        check(nccl_.group_end(), "ncclGroupEnd");
    }

private:
    void check(ncclResult_t result, const char* what) const {
        if (result == ncclSuccess) return;
        const std::string detail = nccl_.last_error(communicator_);
        throw std::runtime_error(std::string(what) + ": " + nccl_.error_string(result) +
                                 (detail.empty() ? "" : " (" + detail + ")") + "; NCCL_DEBUG=INFO prints more");
    }

    const NcclLibrary nccl_;
    ncclComm_t communicator_ = nullptr;
};

#else

struct NcclLibrary {
    NcclLibrary() { throw std::runtime_error("built without it: there was no nccl.h, or make NCCL=0"); }
};
struct Nccl {
    Nccl(const NcclLibrary&, Ranks&) {}
    void exchange(std::span<const Message>, std::span<const Message>, cudaStream_t) {}
};

#endif

inline void exchange_on(Cuda& dev, Ranks& ranks, std::span<const Message> sends, std::span<const Message> receives) {
    ranks.nccl->exchange(sends, receives, dev.stream);
    for (const Message& m : sends) ranks.sent_bytes += static_cast<double>(m.bytes);
}

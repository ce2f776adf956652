#include "dev/emulator/nccl_on_cpu.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

struct ncclComm {
    int rank = 0;
    std::vector<int> sockets{};  // to each rank; -1: this one
    int groups = 0, faulty_group = -1;
    std::function<void()> release = nullptr;  // of the stream, once there is a group that never ends
    int queries_before_error = 10;
    ~ncclComm() {
        for (const int socket : sockets)
            if (socket >= 0) close(socket);
    }
};

namespace {

struct Transfer {
    int peer;
    std::vector<char> bytes;
    char* device;  // where they will lie, if they are received
    cudaStream_t stream;
    ncclComm_t communicator;
    size_t done = 0;
};
bool in_group = false;
std::vector<Transfer> sends, receives;  // of the group

// The address of a rank's socket, in Linux' abstract namespace: no file remains.
sockaddr_un address_of(const ncclUniqueId& id, int rank) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%.80s-%d", id.internal, rank);
    return address;
}

bool whole(int socket, void* data, size_t bytes, auto transfer) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = transfer(socket, static_cast<char*>(data) + done, bytes - done);
        if (n > 0)
            done += static_cast<size_t>(n);
        else if (n == 0 || errno != EINTR)
            return false;
    }
    return true;
}

// Each rank listens, connects to the lower ranks, and says which one it is.
ncclResult_t connect_all(ncclComm& communicator, int ranks, const ncclUniqueId& id) {
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un mine = address_of(id, communicator.rank);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&mine), sizeof mine) != 0 || listen(listener, ranks) != 0)
        return ncclSystemError;
    communicator.sockets.assign(static_cast<size_t>(ranks), -1);
    for (int peer = 0; peer < communicator.rank; ++peer) {
        const int to = communicator.sockets[static_cast<size_t>(peer)] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const sockaddr_un theirs = address_of(id, peer);
        int tries = 0;  // it may not listen yet
        while (connect(to, reinterpret_cast<const sockaddr*>(&theirs), sizeof theirs) != 0) {
            if (errno != ECONNREFUSED || ++tries > 60'000) return ncclSystemError;
            usleep(1000);
        }
        if (!whole(to, &communicator.rank, sizeof(int), write)) return ncclRemoteError;
    }
    for (int peer = communicator.rank + 1; peer < ranks; ++peer) {
        const int from = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        int rank = 0;
        if (from < 0 || !whole(from, &rank, sizeof rank, read)) return ncclRemoteError;
        communicator.sockets[static_cast<size_t>(rank)] = from;
    }
    close(listener);
    for (const int socket : communicator.sockets)
        if (socket >= 0) fcntl(socket, F_SETFL, O_NONBLOCK);
    return ncclSuccess;
}

// Moves what the socket takes at once. Returns false if the peer is gone.
bool move_some(Transfer& t, bool out) {
    const int socket = t.communicator->sockets[static_cast<size_t>(t.peer)];
    char* const at = t.bytes.data() + t.done;
    const size_t left = t.bytes.size() - t.done;
    const ssize_t n = out ? send(socket, at, left, MSG_NOSIGNAL) : recv(socket, at, left, 0);
    if (n > 0) t.done += static_cast<size_t>(n);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

// All transfers, those with one peer in order.
ncclResult_t move_all() {
    const auto begun = [](std::vector<Transfer>& all, bool out) {
        std::vector<std::pair<Transfer*, bool>> first;
        for (Transfer& t : all) {
            const auto of_peer = [&](const auto& other) { return other.first->peer == t.peer; };
            if (t.done < t.bytes.size() && std::none_of(first.begin(), first.end(), of_peer))
                first.emplace_back(&t, out);
        }
        return first;
    };
    for (;;) {
        auto now = begun(sends, true), in = begun(receives, false);
        now.insert(now.end(), in.begin(), in.end());
        if (now.empty()) return ncclSuccess;
        std::vector<pollfd> wanted;
        for (const auto& [t, out] : now)
            wanted.push_back({t->communicator->sockets[static_cast<size_t>(t->peer)],
                              static_cast<short>(out ? POLLOUT : POLLIN), 0});
        if (poll(wanted.data(), wanted.size(), -1) < 0 && errno != EINTR) return ncclSystemError;
        for (size_t i = 0; i < now.size(); ++i)
            if (wanted[i].revents && !move_some(*now[i].first, now[i].second)) return ncclRemoteError;
    }
}

// Once a group never ends, those after it are behind it in the stream.
bool never_ends() {
    const std::vector<Transfer>& transfers = sends.empty() ? receives : sends;
    if (transfers.empty()) return false;
    ncclComm& communicator = *transfers[0].communicator;
    if (++communicator.groups == communicator.faulty_group) communicator.release = emulator::hold(transfers[0].stream);
    return communicator.release != nullptr;
}

ncclResult_t run_group() {
    if (never_ends()) return ncclSuccess;
    for (Transfer& t : sends) {
        if (cudaMemcpyAsync(t.bytes.data(), t.device, t.bytes.size(), cudaMemcpyDeviceToHost, t.stream) ||
            cudaStreamSynchronize(t.stream))
            return ncclUnhandledCudaError;
    }
    if (const ncclResult_t result = move_all(); result != ncclSuccess) return result;
    for (Transfer& t : receives)
        if (cudaMemcpyAsync(t.device, t.bytes.data(), t.bytes.size(), cudaMemcpyHostToDevice, t.stream))
            return ncclUnhandledCudaError;
    return ncclSuccess;
}

ncclResult_t add(std::vector<Transfer>& transfers, const void* data, size_t count, int peer, ncclComm_t communicator,
                 cudaStream_t stream) {
    if (!in_group) return ncclInvalidUsage;  // NCCL would do it at once, and wait for the other half
    if (peer < 0 || peer >= static_cast<int>(communicator->sockets.size()) || peer == communicator->rank)
        return ncclInvalidArgument;
    transfers.push_back(
        {peer, std::vector<char>(count), static_cast<char*>(const_cast<void*>(data)), stream, communicator});
    return ncclSuccess;
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    std::snprintf(id->internal, sizeof id->internal, "emulated-nccl-%d-%lld", getpid(),
                  static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
    if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    const char* const fault = std::getenv("EMULATED_NCCL_FAULT");
    const int faulty_group = fault ? std::atoi(fault) : -1;
    if (faulty_group == 0) return ncclSystemError;
    *communicator = new ncclComm{.rank = rank, .faulty_group = faulty_group};
    return connect_all(**communicator, ranks, id);
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    if (communicator->release) throw emulator::Error("ncclCommDestroy waits for a group that never ends");
    delete communicator;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
    static std::vector<std::unique_ptr<ncclComm>> aborted;  // their sockets stay open, so that the peers wait on
    aborted.emplace_back(communicator);
    if (communicator->release) communicator->release();
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
    *error = communicator->release && communicator->queries_before_error-- <= 0 ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
    in_group = true;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (!in_group) return ncclInvalidUsage;
    const ncclResult_t result = run_group();
    in_group = false;
    sends.clear(), receives.clear();
    return result;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int to, ncclComm_t communicator,
                      cudaStream_t stream) {
    return add(sends, data, count, to, communicator, stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int from, ncclComm_t communicator,
                      cudaStream_t stream) {
    return add(receives, data, count, from, communicator, stream);
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "unhandled cuda error";
        case ncclSystemError:
            return "unhandled system error";
        case ncclInvalidArgument:
            return "invalid argument";
        case ncclInvalidUsage:
            return "invalid usage";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInProgress:
            return "NCCL operation in progress";
    }
    return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

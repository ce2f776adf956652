// The emulator's NCCL: two processes exchange what lies in device memory, in the order of a stream.
#include <gtest/gtest.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/cuda/common.cuh"

namespace {

constexpr int n = 100'000;  // more than a socket takes at once

__global__ void fill(float* out, float x) {
    if (const unsigned i = blockIdx.x * 256 + threadIdx.x; i < n) out[i] = x;
}

// What one rank does; returns what it finds wrong, or "".
std::string exchange_as(int rank, const ncclUniqueId& id) {
    ncclComm_t communicator = nullptr;
    if (ncclCommInitRank(&communicator, 2, id, rank) != ncclSuccess) return "no connection";
    Cuda dev;
    cuda_check(cudaStreamCreateWithFlags(&dev.stream, cudaStreamNonBlocking), "cudaStreamCreate");
    const auto mine = cuda_allocate<float>(n), theirs = cuda_allocate<float>(n), first = cuda_allocate<float>(n);
    const int other = 1 - rank;
    const size_t bytes = n * sizeof(float);
    const auto fill_mine = [&](float x) { LAUNCH(fill, (n + 255) / 256, 256, 0, dev.stream, mine.get(), x); };

    // The second fill must not change what was sent, nor the copy what was received before.
    fill_mine(static_cast<float>(rank + 1));
    ncclGroupStart();
    ncclSend(mine.get(), bytes, ncclInt8, other, communicator, dev.stream);
    ncclRecv(theirs.get(), bytes, ncclInt8, other, communicator, dev.stream);
    if (ncclGroupEnd() != ncclSuccess) return "the first exchange failed";
    fill_mine(static_cast<float>(rank + 11));
    copy(dev, first.get(), theirs.get(), n);
    ncclGroupStart();  // two messages to the same rank arrive in order
    ncclRecv(theirs.get(), 4, ncclInt8, other, communicator, dev.stream);
    ncclRecv(theirs.get() + 1, bytes - 4, ncclInt8, other, communicator, dev.stream);
    ncclSend(first.get(), 4, ncclInt8, other, communicator, dev.stream);
    ncclSend(mine.get() + 1, bytes - 4, ncclInt8, other, communicator, dev.stream);
    if (ncclGroupEnd() != ncclSuccess) return "the second exchange failed";
    const std::vector<float> before = to_host(dev, first.get(), n), after = to_host(dev, theirs.get(), n);
    for (size_t i = 0; i < n; ++i) {
        if (before[i] != static_cast<float>(other + 1)) return "wrong values in the first exchange";
        if (after[i] != static_cast<float>(i == 0 ? rank + 1 : other + 11)) return "wrong values in the second";
    }

    ncclGroupStart();
    ncclSend(mine.get() + 1, bytes, ncclInt8, other, communicator, dev.stream);
    if (ncclGroupEnd() != ncclUnhandledCudaError) return "a message beyond its memory was sent";
    if (ncclSend(mine.get(), 4, ncclInt8, other, communicator, dev.stream) != ncclInvalidUsage) return "sent alone";
    if (rank == 0) {  // the other one ends
        ncclGroupStart();
        ncclRecv(theirs.get(), bytes, ncclInt8, other, communicator, dev.stream);
        if (ncclGroupEnd() != ncclRemoteError) return "received from a process that has ended";
    }
    ncclCommDestroy(communicator);
    return "";
}

TEST(EmulatorNccl, TwoProcessesExchangeInTheOrderOfAStream) {
    ncclUniqueId id{};
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    const pid_t child = fork();  // before OpenMP has threads
    const std::string wrong = exchange_as(child == 0 ? 1 : 0, id);
    if (child == 0) {
        std::fprintf(stderr, "%s", wrong.c_str());
        _exit(wrong.empty() ? 0 : 1);
    }
    EXPECT_EQ(wrong, "");
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
}

}  // namespace

// The emulator's NCCL: two processes exchange what lies in device memory, in the order of a stream. And what the
// program does if one of them is lost.
#include <gtest/gtest.h>
#include <nccl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>

#include "device/cuda/nccl.cuh"
#include "device/cuda/step.cuh"
#include "device/cuda/tree.cuh"
#include "device/parallel/slices.h"

namespace {

constexpr int n = 100'000;  // more than a socket takes at once

__global__ void fill(float* out, float x) {
    if (const unsigned i = blockIdx.x * 256 + threadIdx.x; i < n) out[i] = x;
}

__global__ void ramp(float* out, float first) {
    if (const unsigned i = blockIdx.x * 256 + threadIdx.x; i < n) out[i] = first + static_cast<float>(i % 1009);
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

// Two processes that send each other small messages through a socket, in the place of MPI.
class Pair final : public Ranks {
public:
    Pair(int64_t rank, int socket) : socket_(socket) {
        rank_ = rank, count_ = 2;
        hosts_ = {"here", "here"};
    }
    void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
        for (const Message& m : sends) EXPECT_EQ(write(socket_, m.data, static_cast<size_t>(m.bytes)), m.bytes);
        for (const Message& m : receives) EXPECT_EQ(read(socket_, m.data, static_cast<size_t>(m.bytes)), m.bytes);
    }
    void abort(int status) override { _exit(status); }

private:
    int socket_;
};

[[noreturn]] void be_peer(int socket, const std::function<void(Ranks&)>& peer) noexcept {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // it does not outlive a failed test
    Pair ranks(0, socket);
    peer(ranks);
    for (;;) pause();
}

// Forks, and calls test(ranks) as rank 1. Rank 0 is a process that calls peer(ranks), and is then killed.
void with_peer(const std::function<void(Ranks&)>& peer, const std::function<void(Ranks&)>& test) {
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    const pid_t child = fork();
    if (child == 0) be_peer(sockets[0], peer);
    Pair ranks(1, sockets[1]);
    test(ranks);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (const int socket : sockets) close(socket);
}

void exchange_floats(Cuda& dev, Ranks& ranks, float* mine, float* theirs) {
    const Message out{1 - ranks.rank(), mine, n * 4}, in{1 - ranks.rank(), theirs, n * 4};
    exchange_on(dev, ranks, {&out, 1}, {&in, 1});
}

// The second exchange never ends. Each wait of the host, one at a time, ends with an error instead, and the memory can
// be freed while the error goes up: that too waits for the stream, unless the communicator has been aborted.
TEST(Nccl, AWaitForALostRankEndsWithAnError) {
    const auto make = [](Ranks& ranks) { ranks.nccl = std::make_shared<Nccl>(NcclLibrary(), ranks); };
    const auto exchange_twice = [](Cuda& dev, Ranks& ranks, float* mine, float* theirs) {
        exchange_floats(dev, ranks, mine, theirs);
        to_host(dev, theirs, n);
        exchange_floats(dev, ranks, mine, theirs);
    };
    const std::map<std::string, std::function<void(Cuda&, float*)>> waits{
        {"to_host", [](Cuda& dev, float* x) { to_host(dev, x, n); }},
        {"take", [](Cuda& dev, float* x) { take(dev, x); }},
        {"to_device", [](Cuda& dev, float* x) { to_device(dev, x, std::vector<float>(n).data(), n); }},
        {"from_device",
         [](Cuda& dev, float* x) {
             HostBuffer<float> copy;
             from_device(dev, x, n, copy);
         }},
        {"scratch", [](Cuda& dev, float*) { dev.scratch(1000); }},
        {"on_device",
         [](Cuda& dev, float*) {
             for (int twice = 0; twice < 2; ++twice) on_device(dev, UpdateParams{});
         }},
        {"batch_for", [](Cuda& dev, float*) {  // there are two slots, whose last batches must have been read
             for (int32_t token = 0; token < 5; ++token) batch_for(dev, &token, &token, 1);
         }}};
    for (const auto& [name, wait] : waits) {
        SCOPED_TRACE(name);
        with_peer(
            [&](Ranks& ranks) {
                make(ranks);
                Cuda dev = cuda_for_training();
                const auto x = cuda_allocate<float>(n), y = cuda_allocate<float>(n);
                exchange_twice(dev, ranks, x.get(), y.get());
            },
            [&](Ranks& ranks) {
                setenv("EMULATED_NCCL_FAULT", "2", 1);
                make(ranks);
                unsetenv("EMULATED_NCCL_FAULT");
                try {
                    Cuda dev = cuda_for_training();
                    const auto x = cuda_allocate<float>(n), y = cuda_allocate<float>(n);
                    zero(dev, x.get(), n);
                    dev.scratch(10);
                    prefetch_batch(dev, std::vector<int32_t>(1).data(), std::vector<int32_t>(1).data(), 1);
                    exchange_twice(dev, ranks, x.get(), y.get());
                    wait(dev, y.get());
                    ADD_FAILURE() << "it has not waited";
                } catch (const ConnectionLost& error) {
                    EXPECT_EQ(std::string(error.what()),
                              "NCCL: remote process exited or there was a network error; NCCL_DEBUG=INFO prints more");
                }
                EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // throws if freeing the memory has waited
            });
    }
}

TEST(Nccl, AWaitOfMinutesIsSaid) {
    const auto make = [](Ranks& ranks) { ranks.nccl = std::make_shared<Nccl>(NcclLibrary(), ranks); };
    const auto exchange_with = [&](Ranks& ranks, const std::function<void(Cuda&)>& then) {
        make(ranks);
        Cuda dev = cuda_for_training();
        const auto x = cuda_allocate<float>(n), y = cuda_allocate<float>(n);
        zero(dev, x.get(), n);
        exchange_floats(dev, ranks, x.get(), y.get());
        to_host(dev, y.get(), n);
        then(dev);
    };
    with_peer([&](Ranks& ranks) { exchange_with(ranks, [](Cuda&) {}); },
              [&](Ranks& ranks) {
                  exchange_with(ranks, [](Cuda& dev) {
                      testing::internal::CaptureStderr();
                      for (const double seconds : {0.0, 59.0, 61.0, 62.0, 121.0, 0.0, 1.0}) dev.check_ranks(seconds);
                      EXPECT_EQ(testing::internal::GetCapturedStderr(),
                                "train_gpt2: rank 1 on here has waited for the other GPUs for 1 min; one is busy, "
                                "stopped or cut off\n"
                                "train_gpt2: rank 1 on here has waited for the other GPUs for 2 min; one is busy, "
                                "stopped or cut off\n"
                                "train_gpt2: rank 1 on here goes on\n");
                  });
              });
}

// A piece of a slice arrives while the one before is added. The emulator does the work of two streams in a random
// order: a sum that does not wait for its piece, and a piece that does not wait for the place that it is received in,
// or for what it sends, give wrong values.
TEST(Nccl, APieceIsExchangedWhileTheOneBeforeIsAdded) {
    const std::vector<Slice> slices{{0, 40'000}, {40'000, n}};
    const auto sum = [&](Ranks& ranks, const std::function<void(const std::vector<float>&)>& then) {
        ranks.nccl = std::make_shared<Nccl>(NcclLibrary(), ranks);
        Cuda dev = cuda_for_training();
        const auto x = cuda_allocate<float>(n), received = cuda_allocate<float>(2000);
        for (int again = 0; again < 3; ++again) {
            LAUNCH(ramp, (n + 255) / 256, 256, 0, dev.stream, x.get(), static_cast<float>(again + 10 * ranks.rank()));
            sum_slice(dev, ranks, x.get(), std::span<const Slice>(slices), std::span(received.get(), 2000));
            then(to_host(dev, x.get(), n));
        }
    };
    with_peer([&](Ranks& ranks) { sum(ranks, [](const std::vector<float>&) {}); },
              [&](Ranks& ranks) {
                  float again = 0;
                  sum(ranks, [&](const std::vector<float>& x) {
                      for (size_t i = 0; i < n; ++i) {
                          const auto value = static_cast<float>(i % 1009);
                          ASSERT_EQ(x[i], i < 40'000 ? again + 10 + value : 2 * (again + value) + 10) << i;
                      }
                      ++again;
                  });
              });
}

// A peer that is gone shows when a group ends, and one that cannot be reached at the start.
TEST(Nccl, AFailedCallIsAnErrorToo) {
    with_peer([](Ranks& ranks) { Nccl(NcclLibrary(), ranks); },
              [](Ranks& ranks) {
                  ranks.nccl = std::make_shared<Nccl>(NcclLibrary(), ranks);
                  Cuda dev = cuda_for_training();
                  const auto x = cuda_allocate<float>(n), y = cuda_allocate<float>(n);
                  zero(dev, x.get(), n);
                  EXPECT_THROW(exchange_floats(dev, ranks, x.get(), y.get()), ConnectionLost);
              });
    with_peer([](Ranks& ranks) { all_gather(ranks, ncclUniqueId{}); },
              [](Ranks& ranks) {
                  setenv("EMULATED_NCCL_FAULT", "0", 1);
                  EXPECT_THROW(Nccl(NcclLibrary(), ranks), ConnectionLost);
                  unsetenv("EMULATED_NCCL_FAULT");
              });
}

}  // namespace

// NCCL itself: its library has what the program calls, and sums slices where there are two GPUs. What does not depend
// on NCCL's own work is in emulator_nccl_test.cpp.
#include <gtest/gtest.h>

#include "dev/test/thread_ranks.h"
#include "device/cuda/nccl.cuh"
#include "device/cuda/step.cuh"
#include "device/cuda/tree.cuh"
#include "device/parallel/slices.h"

namespace {

// Needs no GPU: the library is loaded, and each function is found in it.
TEST(NcclLibrary, HasWhatIsCalled) {
    const NcclLibrary library;
    EXPECT_STRNE(library.error_string(ncclSystemError), library.error_string(ncclSuccess));
}

#ifdef __CUDACC__  // the emulator's ranks are processes: Nccl.APieceIsExchangedWhileTheOneBeforeIsAdded
// Each thread is a rank with its own GPU. Pieces of 1,000 values, so that one is received while another is added.
TEST(NcclLibrary, SumsSlicesOverTwoGpus) {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < 2) GTEST_SKIP() << "no two GPUs here";
    constexpr int64_t n = 100'000;
    const std::vector<Slice> slices{{0, 40'000}, {40'000, n}};
    on_threads(2, [&](Ranks& ranks) {
        cuda_check(cudaSetDevice(static_cast<int>(ranks.rank())), "cudaSetDevice");
        ranks.nccl = std::make_shared<Nccl>(NcclLibrary(), ranks);
        Cuda dev = cuda_for_training();
        const auto x = cuda_allocate<float>(n), received = cuda_allocate<float>(2000);
        std::vector<float> values(n);
        for (size_t i = 0; i < n; ++i)
            values[i] = static_cast<float>(10 * ranks.rank() + static_cast<int64_t>(i % 1009));
        to_device(dev, x.get(), values.data(), n);
        sum_slice(dev, ranks, x.get(), std::span<const Slice>(slices), std::span(received.get(), 2000));
        const std::vector<float> sums = to_host(dev, x.get(), n);
        const Slice mine = slices[static_cast<size_t>(ranks.rank())];
        for (int64_t i = 0; i < n; ++i) {
            const bool is_mine = mine.begin <= i && i < mine.end;
            const auto value = static_cast<float>(i % 1009);
            ASSERT_EQ(sums[static_cast<size_t>(i)], is_mine ? 2 * value + 10 : values[static_cast<size_t>(i)]) << i;
        }
    });
}
#endif

}  // namespace

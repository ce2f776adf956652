// The emulator reports LayerNorm's production kernels when they are broken on purpose. The preprocessor breaks them: it
// replaces their barriers and shuffles by functions of this file.
#include <gtest/gtest.h>

#include "dev/emulator/cuda_on_cpu.h"

namespace {

// The lines of the barriers and shuffles that were called, and the one that is left out. Kernels call this, so it must
// not be checked itself, and uses no library.
emulator::Site barriers[8];
int count = 0, removed = -1;
unsigned shuffle_mask = 0xffffffff;

__attribute__((no_sanitize("thread"))) void perhaps_a_barrier(emulator::Site site = emulator::Site::current()) {
    int i = 0;
    while (i < count && barriers[i].line() != site.line()) ++i;
    if (i == count) barriers[count++] = site;
    if (i != removed) __syncthreads(site);
}
__attribute__((no_sanitize("thread"))) float perhaps_a_shuffle(unsigned, float x, int lane,
                                                               emulator::Site site = emulator::Site::current()) {
    return __shfl_xor_sync(shuffle_mask, x, lane, 32, site);
}

}  // namespace

#define __syncthreads perhaps_a_barrier
#define __shfl_xor_sync perhaps_a_shuffle
#include "layers/layernorm.cuh"

namespace {

// Forward and backward; several warps share a row, and several rows share a block. The tensors have `missing_rows`
// fewer rows than the kernels' arguments.
void run(int64_t missing_rows = 0) {
    const int64_t N = 9, C = 516, M = N - missing_rows;
    Cuda dev;
    const auto inp = allocate<float>(dev, M * C), out = allocate<float>(dev, N * C), dinp = allocate<float>(dev, N * C);
    const auto weight = allocate<float>(dev, C), dweight = allocate<float>(dev, C), dbias = allocate<float>(dev, C);
    const auto mean = allocate<float>(dev, N), rstd = allocate<float>(dev, N);
    const float* const no_residual = nullptr;
    layernorm_forward(dev, out.get(), mean.get(), rstd.get(), inp.get(), weight.get(), nullptr, N, C);
    layernorm_backward(dev, dinp.get(), dweight.get(), dbias.get(), out.get(), inp.get(), weight.get(), mean.get(),
                       rstd.get(), no_residual, N, C);
}
std::string report(int64_t missing_rows = 0) {
    try {
        run(missing_rows);
    } catch (const emulator::Error& e) {
        return e.what();
    }
    return "nothing";
}

TEST(BrokenLayerNorm, WithoutAnyOneOfItsBarriers) {
    if (!emulator::checks_every_access()) GTEST_SKIP() << "single accesses are not checked in a sanitizer's build";
    ASSERT_EQ(report(), "nothing");
    EXPECT_EQ(count, 3) << "group_sum's, the groups' sums, the blocks' sums";
    for (int barrier = 0; barrier < count; ++barrier)
        for (emulator::seed = 0; emulator::seed < 5; ++emulator::seed) {
            removed = barrier;
            const std::string without = report();
            removed = -1;
            SCOPED_TRACE(testing::Message()
                         << barriers[barrier].file_name() << ":" << barriers[barrier].line() << ": " << without);
            EXPECT_TRUE(without.find("a race: ") != std::string::npos ||
                        without.find("which nothing has written") != std::string::npos);
            EXPECT_NE(without.find(".cuh:"), std::string::npos);
        }
    EXPECT_EQ(report(), "nothing");
}

TEST(BrokenLayerNorm, WithAShuffleThatLeavesALaneOut) {
    shuffle_mask = 0x7fffffff;
    const std::string without = report();
    shuffle_mask = 0xffffffff;
    EXPECT_NE(without.find("norm_forward_kernel<true, false, 1, 4, 8, float>, block ("), std::string::npos) << without;
    EXPECT_TRUE(without.find("__shfl_xor_sync with the mask 7fffffff, which leaves out lane 31, itself") !=
                    std::string::npos ||
                without.find("reads lane 31, which the mask 7fffffff leaves out") != std::string::npos)
        << without;
    EXPECT_EQ(report(), "nothing");
}

TEST(BrokenLayerNorm, OneRowTooMany) {
    const std::string without = report(1);
    EXPECT_NE(without.find("norm_forward_kernel<true, false, 1, 4, 8, float>, block (2,0,0), thread ("),
              std::string::npos);
    EXPECT_NE(without.find("out of bounds: at byte "), std::string::npos) << without;
    EXPECT_NE(without.find("of an allocation of 16512 bytes, "), std::string::npos) << without;
    EXPECT_NE(without.find("called from layers/layernorm.cuh:"), std::string::npos) << without;
    EXPECT_EQ(report(), "nothing");
}

}  // namespace

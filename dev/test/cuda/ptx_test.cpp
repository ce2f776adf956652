// The wrappers of PTX instructions (device/cuda/mma.cuh) alone, in the emulator or on a GPU, and kernels that use them
// wrongly, which the emulator must report.
#include "device/cuda/mma.cuh"

#include "dev/test/layers/layer_check.h"

namespace {

// A matrix of numbers (rows, columns) that are exact in bf16.
std::vector<bf16> matrix(int rows, int columns, int seed) {
    std::vector<bf16> m;
    for (int i = 0; i < rows * columns; ++i) m.push_back(bf16(static_cast<float>((i * 37 + seed) % 61 - 30)));
    return m;
}
template <class T>
CudaBuffer<T> on_device(Cuda& dev, const std::vector<T>& values) {
    CudaBuffer<T> buffer = cuda_allocate<T>(static_cast<int64_t>(values.size()));
    to_device(dev, buffer.get(), values.data(), static_cast<int64_t>(values.size()));
    return buffer;
}

// d (16,8) += a (16,16) b (16,8), where each lane holds the elements that the documentation gives it.
__global__ void mma_kernel(float* d, const bf16* a, const bf16* b) {
    const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
    unsigned fa[4], fb[2];
    float fd[4];
    for (int i = 0; i < 4; ++i) {
        const bf16* const p = a + (g + 8 * (i % 2)) * 16 + 2 * t + 8 * (i / 2);
        fa[i] = p[0].bits | unsigned{p[1].bits} << 16;
        fd[i] = d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2];
    }
    for (int i = 0; i < 2; ++i) {
        const bf16* const p = b + (2 * t + 8 * i) * 8 + g;
        fb[i] = p[0].bits | unsigned{p[8].bits} << 16;
    }
    mma_m16n8k16(fd, fa, fb);
    for (int i = 0; i < 4; ++i) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = fd[i];
}

TEST(Ptx, MmaMultipliesMatrices) {
    Cuda dev;
    const std::vector<bf16> a = matrix(16, 16, 5), b = matrix(16, 8, 17);
    std::vector<float> d(16 * 8), expected(16 * 8);
    for (size_t i = 0; i < d.size(); ++i) d[i] = expected[i] = static_cast<float>(i) - 50;
    for (size_t y = 0; y < 16; ++y)
        for (size_t x = 0; x < 8; ++x)
            for (size_t k = 0; k < 16; ++k) expected[y * 8 + x] += a[y * 16 + k] * b[k * 8 + x];
    const auto da = on_device(dev, a), db = on_device(dev, b);
    const auto dd = on_device(dev, d);
    LAUNCH(mma_kernel, 1, 32, 0, dev.stream, dd.get(), da.get(), db.get());
    EXPECT_EQ(to_host(dev, dd.get(), 16 * 8), expected);  // whole numbers below 2^24: exact in any order
}

// Tiles in shared memory as in the attention kernels: a, b by rows (of k), bt by columns. The two matmuls, one with
// ldmatrix and one with its transposing form, must agree.
__global__ void matmul_kernel(float* d, const bf16* a, const bf16* b, const bf16* bt) {
    __shared__ __align__(16) bf16 tile_a[16 * 16];
    __shared__ __align__(16) bf16 tile_b[16 * 16];
    __shared__ __align__(16) bf16 tile_bt[16 * 16];
    const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
    copy_async(tile_a + lane * 8, a + lane * 8);
    copy_async(tile_b + lane * 8, b + lane * 8);
    commit_copies();
    copy_async(tile_bt + lane * 8, bt + lane * 8);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    unsigned fa[4], rows[4], columns[4];
    const int row = lane % 16, column = lane / 16 * 8;
    ldmatrix(fa, tile_a + row * 16 + column);
    ldmatrix_transposed(rows, tile_b + row * 16 + column);
    ldmatrix(columns, tile_bt + row * 16 + column);
    for (int half = 0; half < 2; ++half) {
        float by_rows[4] = {}, by_columns[4] = {};
        mma_m16n8k16(by_rows, fa, {rows[2 * half], rows[2 * half + 1]});
        mma_m16n8k16(by_columns, fa, {columns[half], columns[half + 2]});
        for (int i = 0; i < 4; ++i) {
            float* const to = d + (g + 8 * (i / 2)) * 16 + 8 * half + 2 * t + i % 2;
            to[0] = by_rows[i], to[256] = by_columns[i];
        }
    }
}

TEST(Ptx, LdmatrixBringsWhatMmaTakes) {
    Cuda dev;
    const std::vector<bf16> a = matrix(16, 16, 5), b = matrix(16, 16, 17);
    std::vector<bf16> bt(b.size());
    std::vector<float> expected(512);
    for (size_t y = 0; y < 16; ++y)
        for (size_t x = 0; x < 16; ++x) {
            bt[x * 16 + y] = b[y * 16 + x];
            for (size_t k = 0; k < 16; ++k) expected[y * 16 + x] += a[y * 16 + k] * b[k * 16 + x];
            expected[256 + y * 16 + x] = expected[y * 16 + x];
        }
    const auto da = on_device(dev, a), db = on_device(dev, b), dbt = on_device(dev, bt);
    const auto d = cuda_allocate<float>(512);
    LAUNCH(matmul_kernel, 1, 32, 0, dev.stream, d.get(), da.get(), db.get(), dbt.get());
    EXPECT_EQ(to_host(dev, d.get(), 512), expected);
}

__global__ void zero_fill_kernel(float* out, const float* in) {
    __shared__ __align__(16) float tile[128];
    const int i = static_cast<int>(threadIdx.x) * 4;
    copy_async(tile + i, in, threadIdx.x % 2 == 0);
    commit_copies();
    wait_for_copies<0>();
    for (int j = 0; j < 4; ++j) out[i + j] = tile[i + j];
}
TEST(Ptx, AnAbsentCopyBringsZeros) {
    Cuda dev;
    const auto in = on_device(dev, std::vector<float>{1, 2, 3, 4});
    const auto out = cuda_allocate<float>(128);
    LAUNCH(zero_fill_kernel, 1, 32, 0, dev.stream, out.get(), in.get());
    const std::vector<float> got = to_host(dev, out.get(), 128);
    for (size_t i = 0; i < 128; ++i) EXPECT_EQ(got[i], i / 4 % 2 ? 0 : static_cast<float>(i % 4 + 1)) << i;
}

__global__ void arithmetic_kernel(float* powers, unsigned* packed_pairs, const float* x) {
    const unsigned i = threadIdx.x;
    powers[i] = exp2_approx(x[i]);
    packed_pairs[i] = pack_bf16(x[i], -x[i]);
}
TEST(Ptx, PowersOfTwoAndPacking) {
    Cuda dev;
    const std::vector<float> x = {0,    1,    -1,   0.5f,      -0.3f, 10.7f, -100.25f,    127,
                                  -126, -127, -150, -INFINITY, 3e38f, NAN,   1.00390625f, 1.01171875f};
    const auto in = on_device(dev, x);
    const auto powers = cuda_allocate<float>(16);
    const auto packed_pairs = cuda_allocate<unsigned>(16);
    LAUNCH(arithmetic_kernel, 1, 16, 0, dev.stream, powers.get(), packed_pairs.get(), in.get());
    const std::vector<float> got = to_host(dev, powers.get(), 16);
    const std::vector<unsigned> pairs = to_host(dev, packed_pairs.get(), 16);
    for (size_t i = 0; i < 16; ++i) {
        const double exact = std::exp2(static_cast<double>(x[i]));
        if (std::isnan(x[i]) || exact > 3.4e38)
            EXPECT_TRUE(std::isnan(x[i]) ? std::isnan(got[i]) : std::isinf(got[i])) << x[i];
        else
            EXPECT_LE(std::abs(static_cast<double>(got[i]) - exact), exact < 0x1p-126 ? 0x1p-126 : exact * 0x1p-22)
                << x[i];
        const bf16 half(x[i]);
        if (!std::isnan(x[i]))
            EXPECT_EQ(pairs[i], half.bits | unsigned(half.bits ^ 0x8000) << 16) << x[i];
        else
            EXPECT_TRUE(std::isnan(float_from_bf16(static_cast<uint16_t>(pairs[i]))));
    }
}

// --- more shared memory than the default limit
__global__ void large_kernel(float* out, int floats) {
    DYN_SHARED(float, tile);
    for (int i = static_cast<int>(threadIdx.x); i < floats; i += 32) tile[i] = static_cast<float>(i);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = tile[0] + tile[floats - 1];
}
TEST(Ptx, SharedMemoryBeyond48KiBIsAskedFor) {
    Cuda dev;
    const auto out = cuda_allocate<float>(1);
    const auto launch = [&](int bytes) { LAUNCH(large_kernel, 1, 32, bytes, dev.stream, out.get(), bytes / 4); };
    launch(48 * 1024);
    EXPECT_THROW(launch(48 * 1024 + 16), std::runtime_error);
    constexpr auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    EXPECT_EQ(cudaFuncSetAttribute(large_kernel, attribute, 64 * 1024), cudaSuccess);
    launch(64 * 1024);
    EXPECT_EQ(to_host(dev, out.get(), 1)[0], 64 * 256 - 1);
    EXPECT_THROW(launch(64 * 1024 + 16), std::runtime_error);
    EXPECT_NE(cudaFuncSetAttribute(large_kernel, attribute, 228 * 1024), cudaSuccess);
    cudaGetLastError();
}

// --- broken on purpose
#ifndef __CUDACC__

enum class Break { nothing, wait, barrier, commit, reuse, alignment, global_row, whole_tile, divergence, never };

// Each thread copies 8 numbers by cp.async twice, and reads those of a neighbour by ldmatrix.
template <Break b>
__global__ void broken_kernel(unsigned* out, const bf16* in) {
    DYN_SHARED(bf16, tile);
    const int lane = static_cast<int>(threadIdx.x);
    unsigned sum = 0;
    for (int step = 0; step < 2; ++step) {
        if (b != Break::whole_tile || lane < 31) copy_async(tile + lane * 8, in + (step * 64 + lane) * 8);
        if (b != Break::commit) commit_copies();
        if (b == Break::never && step == 1) return;
        if (b == Break::wait)
            wait_for_copies<1>();
        else
            wait_for_copies<0>();
        if (b != Break::barrier) __syncthreads();
        unsigned r[4] = {};
        const bf16* row = tile + (lane ^ 32) * 8;
        if (b == Break::alignment) row += 4 * (lane % 2);
        if (b == Break::global_row) row = in;
        if (b == Break::divergence && lane % 32 == 3) __syncwarp();
        ldmatrix(r, row);
        sum += r[0] ^ r[1] ^ r[2] ^ r[3];
        if (b != Break::reuse) __syncthreads();
    }
    out[lane] = sum;
}

// In how many of 20 orders of the threads the launch fails with the message `what`.
template <Break b>
int reports(const std::vector<std::string>& what) {
    Cuda dev;
    const auto in = on_device(dev, matrix(128, 8, 3));
    const auto out = cuda_allocate<unsigned>(64);
    int failures = 0;
    for (emulator::seed = 1; emulator::seed <= 20; ++emulator::seed) try {
            LAUNCH((broken_kernel<b>), 1, 64, 64 * 16, dev.stream, out.get(), in.get());
        } catch (const emulator::Error& e) {
            ++failures;
            EXPECT_TRUE(std::any_of(what.begin(), what.end(), [&](const std::string& w) {
                return std::string(e.what()).find(w) != std::string::npos;
            })) << e.what();
            EXPECT_NE(std::string(e.what()).find(b == Break::never ? "broken_kernel" : "cuda/ptx_test.cpp:"),
                      std::string::npos)
                << e.what();
        }
    emulator::seed = 1;
    return failures;
}

TEST(BrokenPtx, TheKernelByItselfIsRight) { EXPECT_EQ(reports<Break::nothing>({}), 0); }
TEST(BrokenPtx, AMisalignedAddress) {
    EXPECT_EQ(reports<Break::alignment>({"ldmatrix from a misaligned address"}), 20);
}
TEST(BrokenPtx, ARowInGlobalMemory) { EXPECT_EQ(reports<Break::global_row>({"not in shared memory"}), 20); }
TEST(BrokenPtx, ALaneElsewhere) { EXPECT_EQ(reports<Break::divergence>({"ldmatrix", "__syncwarp"}), 20); }
TEST(BrokenPtx, CopiesThatNothingWaitsFor) { EXPECT_EQ(reports<Break::never>({"copies under way"}), 20); }

// The checks of single accesses find these.
TEST(BrokenPtx, AMissingWait) {
    if (!emulator::checks_every_access()) GTEST_SKIP() << "not compiled with the checks of accesses";
    EXPECT_EQ(reports<Break::wait>({"which nothing has written", "a race"}), 20);
    EXPECT_EQ(reports<Break::commit>({"which nothing has written", "a race"}), 20);
}
TEST(BrokenPtx, AMissingBarrier) {
    if (!emulator::checks_every_access()) GTEST_SKIP() << "not compiled with the checks of accesses";
    EXPECT_EQ(reports<Break::barrier>({"a race", "which nothing has written"}), 20);
    EXPECT_EQ(reports<Break::reuse>({"a race", "which nothing has written"}), 20);
}
TEST(BrokenPtx, SharedMemoryThatNothingWasWrittenTo) {
    if (!emulator::checks_every_access()) GTEST_SKIP() << "not compiled with the checks of accesses";
    EXPECT_EQ(reports<Break::whole_tile>({"which nothing has written"}), 20);
}

#endif

}  // namespace

// Shared by the attention kernels on tensor cores: tiles of a head's rows in shared memory, and matmuls of 16 of their
// rows. A warp keeps M times 16 rows of its own side as the left operand in registers, as fragments for mma, and loops
// over tiles of the other side as right operands.
#pragma once

#include "device/cuda/mma.cuh"
#include "layers/attention/block_tile.cuh"
#include "layers/dropout.h"

namespace attention_mma {

constexpr int threads = 128, warps = 4, tile_rows = 64;
constexpr float log2e = 1.44269504f, ln2 = 0.693147181f;

// The offset of 8 channels (a chunk of 16 bytes) of a row in a tile (tile_rows,HS). ldmatrix reads the same chunk of 8
// rows at a time, which must lie in 8 different groups of banks. Rows are HS/8 = odd * 2^p chunks long, so they begin
// at 8 / 2^p different groups; permuting the lower p bits of the chunk by row gives the others.
template <int HS>
__device__ __forceinline__ int at(int row, int chunk) {
    constexpr int length = HS / 8, bits = length % 8 == 0 ? 3 : length % 4 == 0 ? 2 : length % 2 == 0 ? 1 : 0;
    return row * HS + (chunk ^ (row >> (3 - bits) & ((1 << bits) - 1))) * 8;
}

// Begins to copy ROWS rows from `first` on, which lie `stride` apart. Rows from `seq` on do not exist and become 0. 8
// threads copy a row, so that the changing part of the address is the same for all threads.
template <int HS, int ROWS>
__device__ __forceinline__ void copy_rows(bf16* tile, const bf16* source, int64_t stride, int first, int seq) {
    constexpr int step = threads / 8;
    const int row = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
    const bf16* from = source + (first + row) * stride + chunk * 8;
    UNROLL for (int i = 0; i < ROWS; i += step, from += step * stride)
        UNROLL for (int c = 0; c < HS / 8; c += 8) if (chunk + c < HS / 8)
            copy_async(tile + at<HS>(i + row, chunk + c), from + c * 8, first + row + i < seq);
}

// Begins to copy a tile of keys, followed by one of values, of the head whose queries begin at base.
template <int HS>
__device__ __forceinline__ void copy_keys_and_values(bf16* tiles, const bf16* base, int64_t C, int first, int seq) {
    copy_rows<HS, tile_rows>(tiles, base + C, 3 * C, first, seq);
    copy_rows<HS, tile_rows>(tiles + tile_rows * HS, base + 2 * C, 3 * C, first, seq);
    commit_copies();
}

// --- operands from 16 rows of a tile, beginning at `rows`, a multiple of 16, and from the k-th 16 channels
// a (16,16), the left operand
template <int HS>
__device__ __forceinline__ void load_left(unsigned (&a)[4], const bf16* rows, int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ldmatrix(a, rows + at<HS>(lane % 16, 2 * k + lane / 16));
}
// The right operand of a matmul over channels, whose columns are the rows: 8 of them in b[0], b[1], 8 in b[2], b[3].
template <int HS>
__device__ __forceinline__ void load_columns(unsigned (&b)[4], const bf16* rows, int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ldmatrix(b, rows + at<HS>(lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
}
// The right operand of a matmul over rows, whose columns are the channels, in the same order.
template <int HS>
__device__ __forceinline__ void load_rows(unsigned (&b)[4], const bf16* rows, int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ldmatrix_transposed(b, rows + at<HS>(lane % 16, 2 * k + lane / 16));
}
__device__ __forceinline__ void mma_m16n16k16(float (&left)[4], float (&right)[4], const unsigned (&a)[4],
                                              const unsigned (&b)[4]) {
    mma_m16n8k16(left, a, {b[0], b[1]});
    mma_m16n8k16(right, a, {b[2], b[3]});
}
// The result of a matmul as the left operand of the next: columns become channels, rounded to bf16.
__device__ __forceinline__ void as_left(unsigned (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack_bf16(left[0], left[1]);
    a[1] = pack_bf16(left[2], left[3]);
    a[2] = pack_bf16(right[0], right[1]);
    a[3] = pack_bf16(right[2], right[3]);
}

// The row and column, of 16, of element i in the left or right half of a result.
__device__ __forceinline__ int result_row(int i) { return static_cast<int>(threadIdx.x) % 32 / 4 + i / 2 * 8; }
__device__ __forceinline__ int result_column(int half, int i) {
    return 8 * half + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
}

// Which of a head's weights dropout keeps, 16 queries x 16 keys at a time. kept(half, i) of what of_queries() and
// of_keys() return tells it for element i in the left or right half of a result, whose rows are the queries or the
// keys.
struct AllKept {
    __device__ __forceinline__ AllKept(const Dropout&, int64_t, int, int) {}
    __device__ __forceinline__ AllKept of_queries(int, int) const { return *this; }
    __device__ __forceinline__ AllKept of_keys(int, int) const { return *this; }
    __device__ __forceinline__ bool kept(int, int) const { return true; }
};
struct SomeKept {
    Random random;
    uint32_t site, threshold;
    uint64_t first;  // the lane's draw for the head's first queries and keys
    int64_t row_draws;
    __device__ __forceinline__ SomeKept(const Dropout& d, int64_t head, int seq, int NH)
        : random(d.random()), site(d.site), threshold(d.threshold), row_draws((seq + 7) / 8) {
        const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4 + lane % 4 / 2 * 8;
        first = d.first_draw(head * seq + row, int64_t{NH} * seq, seq) + static_cast<uint64_t>(lane % 2);
    }

    // Each lane draws for one of the 16 queries and 8 of the 16 keys. Then four lanes of a warp have all bits of rows
    // r and r + 8, r = lane / 4: bit 16 * half + k, for key k, is 1 if it is kept for row r + 8 * half.
    __device__ __forceinline__ unsigned bits(int query, int key) const {
        const Philox drawn = random.bits(first + static_cast<uint64_t>(query * row_draws + key / 8), site);
        unsigned kept = 0;
        UNROLL for (int i = 0; i < 8; ++i) kept |= (drawn.bits16(i) >= threshold ? 1u : 0u) << i;
        kept <<= threadIdx.x % 4 * 8;
        kept |= __shfl_xor_sync(0xffffffff, kept, 1);
        return kept | __shfl_xor_sync(0xffffffff, kept, 2);
    }
    struct OfQueries {
        unsigned bits;
        __device__ __forceinline__ bool kept(int half, int i) const {
            return bits >> (i / 2 * 16 + result_column(half, i)) & 1;
        }
    };
    __device__ __forceinline__ OfQueries of_queries(int query, int key) const { return {bits(query, key)}; }
    struct OfKeys {
        unsigned bits[2];  // of queries result_column(half, i) with i % 2 = 0, 1
        __device__ __forceinline__ bool kept(int half, int i) const {
            return bits[i % 2] >> (half * 16 + result_row(i)) & 1;
        }
    };
    __device__ __forceinline__ OfKeys of_keys(int query, int key) const {
        const unsigned all = bits(query, key);
        const int first_lane = static_cast<int>(threadIdx.x) % 4 * 8;
        return {{__shfl_sync(0xffffffff, all, first_lane), __shfl_sync(0xffffffff, all, first_lane + 4)}};
    }
};
template <bool DROP>
using Weights = std::conditional_t<DROP, SomeKept, AllKept>;

// p[0] = low, p[1] = high; p is aligned to 4 bytes
__device__ __forceinline__ void store_pair(bf16* p, float low, float high) {
    using Bits = unsigned __attribute__((may_alias));
    *reinterpret_cast<Bits*>(p) = pack_bf16(low, high);
}

// multiply() for 16 rows and the 16 columns of the same positions; a is 0 for masked entries, above the diagonal
// (LOWER) or below it. Elements of b may be NaN or infinite, and 0 times those would be NaN even where a is masked. So
// they are set to 0, and results that depend on a visible one become NaN. A second matmul finds these results: of ones
// for visible entries, and ones for such elements of b.
template <bool LOWER>
__device__ __forceinline__ void mma_on_diagonal(float (&left)[4], float (&right)[4], const unsigned (&a)[4],
                                                const unsigned (&b)[4]) {
    const auto infinite = [](unsigned half) { return (half & 0x7f80) == 0x7f80; };
    unsigned finite[4], changed = 0;
    UNROLL for (int i = 0; i < 4; ++i) {
        finite[i] = (infinite(b[i]) ? 0 : b[i] & 0xffff) | (infinite(b[i] >> 16) ? 0 : b[i] & 0xffff0000);
        changed |= finite[i] ^ b[i];
    }
    mma_m16n16k16(left, right, a, finite);
    if (!__any_sync(0xffffffff, changed != 0)) return;
    constexpr unsigned one = 0x3f80;
    float visible[2][4];
    unsigned ones[4];
    UNROLL for (int half = 0; half < 2; ++half) UNROLL for (int i = 0; i < 4; ++i) {
        const int row = result_row(i), column = result_column(half, i);
        visible[half][i] = (LOWER ? column <= row : column >= row) ? 1 : 0;
    }
    as_left(ones, visible[0], visible[1]);
    UNROLL for (int half = 0; half < 2; ++half) {
        float count[4] = {};
        unsigned found[2];
        UNROLL for (int i = 0; i < 2; ++i) {
            const unsigned pair = b[2 * half + i];
            found[i] = (infinite(pair) ? one : 0) | (infinite(pair >> 16) ? one << 16 : 0);
        }
        mma_m16n8k16(count, ones, found);
        float(&d)[4] = half == 0 ? left : right;
        UNROLL for (int i = 0; i < 4; ++i) d[i] = count[i] > 0 ? __uint_as_float(0x7fc00000) : d[i];
    }
}

// --- launches
// Allows a kernel more shared memory than the default limit.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, int bytes) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
}

// Calls f<HS, DROP>() for the head sizes that the kernels support; DROP: with dropout. Returns false for others, or if
// rows cannot be copied 16 bytes at a time.
template <class F, class... Pointer>
bool for_head_size(int64_t hs, const Dropout& dropout, F f, const Pointer*... tensors) {
    if (!can_pack<bf16>(hs, tensors...)) return false;
    const auto with = [&]<int HS>() {
        if (dropout.on()) return f.template operator()<HS, true>();
        f.template operator()<HS, false>();
    };
    if (hs == 64) return with.template operator()<64>(), true;
    if (hs == 80) return with.template operator()<80>(), true;
    if (hs == 96) return with.template operator()<96>(), true;
    if (hs == 128) return with.template operator()<128>(), true;
    return false;
}

}  // namespace attention_mma

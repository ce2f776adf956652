// The GEMM on AMX, which multiplies tiles of bf16 and accumulates 16 x 16 sums in fp32 (TDPBF16PS). With one plane,
// operands are rounded to bf16. With three, a float is split into three bf16 that add up to it, 8 of its 24 bits each,
// and of the nine products of the parts of two floats the six above 2^-24 are summed (Henry, Tang & Heinecke 2019): as
// exact as fp32, and faster, as AMX does 16 times the FMAs of fp32.
//
// Packing takes about as long as the tile products, but runs on the vector units, which are idle meanwhile. So packing
// and the epilogue of C's previous block are interleaved with the tile products, one share at a time. A core looks some
// 500 instructions ahead and executes both at once, if only in part: four tile products with their loads take 38 ns,
// packing a tile from L1 takes 13 ns, and both take 47.
#pragma once

#include "device/cpu/gemm/pack_amx.h"

#if defined(__AMX_BF16__)
#include "device/platform.h"

namespace amx {

using gemm::part_of;
using gemm::Range;
using gemm::Store;

template <int n>
struct Planes {};  // a kind of matmul, like gemm::Floats

// Block sizes by the number of planes. Packed A (MC x KC) is kept while B's columns pass, in two packed copies of KC x
// NC, one in use and one being packed; all of it stays in L2. KC is long, so that C's tiles are rarely read and
// written.
template <int planes>
struct Blocks;
template <>
struct Blocks<1> {
    static constexpr int64_t KC = 512, MC = 32 * block_side, NC = 12 * block_side;
};
template <>
struct Blocks<3> {
    static constexpr int64_t KC = 512, MC = 8 * block_side, NC = 4 * block_side;
};
// The pairs of planes of A and B that are multiplied, the smallest products first. Consecutive pairs share a plane.
struct Pair {
    int a, b;
};
template <int planes>
constexpr Pair plane_pairs[1] = {{0, 0}};
template <>
constexpr Pair plane_pairs<3>[6] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};

template <int planes>
constexpr int64_t words(int64_t n) {  // of n packed rows or columns
    return n * Blocks<planes>::KC / 2 * planes;
}
template <int planes>
constexpr int64_t scratch_floats() {  // of each thread
    return words<planes>(Blocks<planes>::MC + block_side) + 2 * words<planes>(Blocks<planes>::NC);
}

inline bool permitted() {
    static const bool granted = platform::request_amx();
    return granted;
}
// Eight registers of 16 rows of 64 bytes, for the calling thread.
inline void configure() {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("" ::"r"(&config) : "memory");  // GCC's intrinsic declares that it reads 8 of the 64 bytes
    _tile_loadconfig(&config);
}

// c (32,32) [+]= a · b over `steps` of 32 in K; a and b hold two tiles per step and plane. Four tiles of sums use two
// tiles of a and two of b: 4 loads of 8 cycles, 4 tile products of 16 cycles. meanwhile() is called after each pair of
// planes.
template <int planes, class F>
void multiply_whole_block(int64_t steps, const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, bool accumulate,
                          const F& meanwhile) {
    constexpr int64_t size = words_of_tile, row = 64;
    float* const below = c + tile_side * ldc;
    const int64_t c_row = ldc * static_cast<int64_t>(sizeof(float));
    asm volatile("" ::: "memory");  // GCC's tile loads do not declare that they read memory
    if (accumulate) {
        _tile_loadd(0, c, c_row);
        _tile_loadd(1, c + tile_side, c_row);
        _tile_loadd(2, below, c_row);
        _tile_loadd(3, below + tile_side, c_row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    const auto multiply_planes = [&](int a_plane, int b_plane, bool load_a, bool load_b)
        __attribute__((always_inline)) {
        if (load_a) {
            _tile_loadd(4, a + 2 * a_plane * size, row);
            _tile_loadd(5, a + (2 * a_plane + 1) * size, row);
        }
        if (load_b) {
            _tile_loadd(6, b + 2 * b_plane * size, row);
            _tile_loadd(7, b + (2 * b_plane + 1) * size, row);
        }
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    };
    for (int64_t s = 0; s < steps; ++s, a += 2 * planes * size, b += 2 * planes * size) {
        Pair loaded{-1, -1};
#pragma GCC unroll 6
        for (const auto& [a_plane, b_plane] : plane_pairs<planes>) {
            multiply_planes(a_plane, b_plane, a_plane != loaded.a, b_plane != loaded.b);
            loaded = {a_plane, b_plane};
            meanwhile();
        }
    }
    _tile_stored(0, c, c_row);
    _tile_stored(1, c + tile_side, c_row);
    _tile_stored(2, below, c_row);
    _tile_stored(3, below + tile_side, c_row);
}

// c (rows,columns) [+]= a · b with at most 32 rows and columns. At C's edges the result goes through a block on the
// stack.
template <int planes, class F>
void multiply_block(int64_t steps, const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, bool accumulate,
                    int64_t rows, int64_t columns, const F& meanwhile) {
    if (rows == block_side && columns == block_side)
        return multiply_whole_block<planes>(steps, a, b, c, ldc, accumulate, meanwhile);
    alignas(64) float block[block_side * block_side];
    const auto copy = [&](float* to, int64_t to_row, const float* from, int64_t from_row) {
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; j += tile_side)
                simd::store_n(to + i * to_row + j, simd::load_n(from + i * from_row + j, columns - j), columns - j);
    };
    std::fill_n(block, block_side * block_side, 0.0f);
    if (accumulate) copy(block, block_side, c, ldc);
    multiply_whole_block<planes>(steps, a, b, block, block_side, true, meanwhile);
    copy(c, ldc, block, block_side);
}

constexpr int64_t rows_at_once = 8;  // for which an epilogue is called: enough that its chains overlap

// Spreads work evenly over a number of calls.
class Share {
public:
    Share(int64_t work, int64_t calls) : work_(work), calls_(calls) {}
    template <class F>
    void call(const F& f) {
        for (due_ += work_; due_ >= calls_; due_ -= calls_) f();
    }

private:
    int64_t work_, calls_, due_ = 0;
};

// Computes C's rectangle [rows) x [columns), as gemm::block does. `memory` is scratch memory of scratch_floats()
// floats. StoredA as in gemm::block, with one plane.
template <int planes, Order A, Order B, class StoredA = gemm::Floats>
void block(float* memory, Range rows, Range columns, int64_t K, const float* a, int64_t lda, const float* b,
           int64_t ldb, float* c, int64_t ldc, Store store, gemm::EpilogueRef epilogue, float* row_sums) {
    configure();
    if (rows.size() <= 0 || columns.size() <= 0) return;
    // If K is shorter than KC, blocks have more rows and columns.
    const int64_t k_blocks = ceil_div(K, Blocks<planes>::KC),
                  k_block = ceil_div(ceil_div(K, k_blocks), block_side) * block_side;
    const int64_t more = Blocks<planes>::KC / k_block, n_tiles = ceil_div(columns.size(), block_side),
                  n_blocks = ceil_div(n_tiles * block_side, Blocks<planes>::NC * more),
                  of_strip = block_side * k_block / 2 * planes;
    // Packed A is kept for a whole block of K, plus the first strip of the next block. If each strip is used only once,
    // just the strip in use and the next one are kept.
    const bool once = n_blocks == 1;
    const int64_t m_block = once ? rows.size() : Blocks<planes>::MC * more, slots = once ? 2 : m_block / block_side + 1;
    // With one block of K, the sums lie beside C, in L1, until an epilogue writes C. In a small model C's lines come
    // one by one from far away; so they are written once, and no tile product waits for them.
    const bool beside = store != Store::add && k_blocks == 1;
    alignas(64) float sums[2][block_side * block_side];  // of the block that is computed, and of the one before
    int buffer = 0;
    const int64_t ld_sums = beside ? block_side : ldc;
    const auto copy_sums = [=](int64_t m, int64_t n, int64_t left, const float* from) {
        simd::store_n(c + m * ldc + n, simd::load_n(from, left), left);
    };
    if (beside && !epilogue) epilogue = copy_sums;
    uint32_t* const packed_b = reinterpret_cast<uint32_t*>(memory);
    uint32_t* const packed_a = packed_b + 2 * words<planes>(Blocks<planes>::NC);
    for (int64_t m0 = rows.begin; m0 < rows.end; m0 += m_block) {
        const int64_t m1 = std::min(rows.end, m0 + m_block), strips = ceil_div(m1 - m0, block_side);
        const auto k_of = [&](int64_t i) { return Range{i * k_block, std::min(K, (i + 1) * k_block)}; };
        // Packed strips of A and blocks of B are numbered in the order of packing: block of K by block of K.
        const auto a_words = [&](int64_t i) { return packed_a + i % slots * of_strip; };
        const auto pack_a = [&](int64_t i) {
            const int64_t m = m0 + i % strips * block_side;
            const Range k = k_of(i / strips);
            const float* const from =
                a + (A == Order::k_last ? m * lda + k.begin / StoredA::size : k.begin * lda + m / StoredA::size);
            return Packing<A, false, planes, StoredA>(a_words(i), from, lda,
                                                      k.begin < K ? std::min(block_side, m1 - m) : 0, k.size(),
                                                      row_sums && columns.begin == 0 ? row_sums + m : nullptr);
        };
        const auto b_words = [&](int64_t j) { return packed_b + j % 2 * words<planes>(Blocks<planes>::NC); };
        const auto columns_of = [&](int64_t j) {
            const Range tiles = part_of(n_tiles, n_blocks, j % n_blocks);
            return Range{columns.begin + tiles.begin * block_side,
                         std::min(columns.end, columns.begin + tiles.end * block_side)};
        };
        const auto pack_b = [&](int64_t j) {
            const Range n = columns_of(j), k = k_of(j / n_blocks);
            return Packing<B, true, planes>(
                b_words(j), b + (B == Order::k_last ? n.begin * ldb + k.begin : k.begin * ldb + n.begin), ldb,
                k.begin < K ? n.size() : 0, k.size(), nullptr);
        };
        // Rows of a block of C that wait for the epilogue, with their sums.
        struct {
            int64_t row = 0, end = 0, column = 0, width = 0;
            const float* sums = nullptr;
        } finished;
        const auto finish_rows = [&] {
            const int64_t row = finished.row, count = std::min(rows_at_once, finished.end - row);
            if (count <= 0) return;
            epilogue({row, row + count}, finished.column, finished.width, finished.sums, ld_sums);
            finished.row += count;
            finished.sums += count * ld_sums;
        };
        // The block of C that is next, if it is not computed beside C: its lines are prefetched.
        float* next_c = nullptr;
        int64_t next_line = 0;
        const auto prefetch_c = [&] {
            prefetch_line<Access::write>(next_c + next_line / 2 * ldc + next_line % 2 * tile_side);
            ++next_line;
        };
        pack_a(0).pack_all();
        pack_b(0).pack_all();
        for (int64_t j = 0; j < k_blocks * n_blocks; ++j) {
            const Range n = columns_of(j), k = k_of(j / n_blocks);
            const int64_t steps = ceil_div(k.size(), block_side), calls = steps * std::ssize(plane_pairs<planes>),
                          calls_of_strip = ceil_div(n.size(), block_side) * calls;
            auto next_b = pack_b(j + 1);
            Share share_b(next_b.parts(), strips * calls_of_strip);
            for (int64_t i = 0; i < strips; ++i) {
                const int64_t strip = j / n_blocks * strips + i, m = m0 + i * block_side;
                const bool packs = i + 1 < strips ? j % n_blocks == 0 : (j + 1) % n_blocks == 0;
                auto next_a = pack_a(packs ? strip + 1 : k_blocks * strips);
                Share share_a(next_a.parts(), calls_of_strip), share_epilogue(block_side / rows_at_once, calls),
                    share_c(beside ? 0 : 2 * block_side, calls);
                const auto meanwhile = [&]() __attribute__((always_inline)) {
                    share_epilogue.call(finish_rows);
                    share_c.call(prefetch_c);
                    share_a.call([&] { next_a.pack_part(); });
                    share_b.call([&] { next_b.pack_part(); });
                };
                for (int64_t o = n.begin; o < n.end; o += block_side) {
                    const int64_t height = std::min(block_side, m1 - m), width = std::min(block_side, n.end - o);
                    float* const out = beside ? sums[buffer ^= 1] : c + m * ldc + o;
                    next_c = o + block_side < n.end ? out + block_side : c + (m + block_side) * ldc + n.begin;
                    next_line = 0;
                    multiply_block<planes>(steps, a_words(strip),
                                           b_words(j) + (o - n.begin) * steps * tile_side * planes, out, ld_sums,
                                           store == Store::add || k.begin > 0, beside ? block_side : height,
                                           beside ? block_side : width, meanwhile);
                    if (k.end == K) finished = {m, m + height, o, width, out};
                }
            }
        }
        while (finished.row < finished.end) finish_rows();
    }
}

}  // namespace amx
#else
namespace amx {
inline bool permitted() { return false; }
inline void configure() {}
}  // namespace amx
#endif

// Packed operands for the GEMM on AMX (gemm_amx.h).
//
// The instructions multiply pairs in K and add them to one sum, so operands are packed as words of two bf16, neighbours
// in K (words.h), in tiles of 16 x 16 words, 1 KiB each. For a step of 32 in K:
//   A: word [m][p] holds A[m][2p], A[m][2p + 1]        B: word [p][n] holds B[2p][n], B[2p + 1][n]
#pragma once

#include "device/cpu/gemm/gemm.h"

#if defined(__AVX512BF16__)  // not AMX, so that CPUs without AMX can test it
namespace amx {

using gemm::ceil_div;
using gemm::Order;
using simd::vfloat;
using vuint = uint32_t __attribute__((vector_size(64), may_alias));

constexpr int64_t tile_side = 16;              // rows or columns, and words of k
constexpr int64_t block_side = 2 * tile_side;  // of a block of C; also the k's of a step
constexpr int64_t words_of_tile = tile_side * tile_side;

// Words whose lower halves are bf16 of x's lanes and whose upper halves are bf16 of y's. With one plane, these are the
// nearest bf16. With three, they add up to x and y exactly, except for numbers below some 2^-110, whose last bits are
// lost, and numbers that round to infinity, which become NaN.
template <int planes>
[[gnu::always_inline]] inline void split(vfloat x, vfloat y, vfloat (&words)[planes]) {
    if constexpr (planes == 1) {
        const vfloat rows[] = {x, y};
        words[0] = gemm::Bf16Pairs::across(rows);
    } else {
        const auto near = [](vfloat z) { return (vfloat)(((vuint)z + 0x8000u) & 0xffff0000u); };
        for (int i = 0; i < planes; ++i) {
            const bool last = i == planes - 1;  // the last part fits without rounding, so NaN stays NaN
            const vfloat lower = last ? x : near(x), upper = last ? y : near(y);
            words[i] = (vfloat)_mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)((vuint)lower >> 16), (__m512i)upper);
            x -= lower, y -= upper;
        }
    }
}
// The same for the neighbours in x's lanes, which y's lanes continue.
template <int planes>
[[gnu::always_inline]] inline void split_along(vfloat x, vfloat y, vfloat (&words)[planes]) {
    if constexpr (planes == 1) {
        const vfloat row[] = {x, y};
        words[0] = gemm::Bf16Pairs::along(row);
    } else {
        split(simd::shuffle(x, y, [](int i) { return 2 * i; }), simd::shuffle(x, y, [](int i) { return 2 * i + 1; }),
              words);
    }
}

// Packs n rows of A (or, with `across`, columns of B) and K values of each, in blocks of 32 rows. A block holds its
// steps one after another; a step holds two tiles of words for each plane. Rows and values that do not exist are zeros.
// The words of one k lie in one row of a tile with `across`, else in one column. A plane's tiles are 2 tiles behind
// those of the plane before.
// row_sums, if not null (k_first only): += the sum over K of each row.
// With Stored = Bf16Pairs, of one plane and not `across`, x consists of pairs of neighbours in its rows, and ld counts
// pairs.
template <Order O, bool across, int planes, class Stored = gemm::Floats>
class Packing {
    static constexpr bool paired = Stored::size > 1;
    static_assert(!paired || (planes == 1 && !across));

public:
    Packing(uint32_t* words, const float* x, int64_t ld, int64_t n, int64_t K, float* row_sums)
        : words_(words), x_(x), ld_(ld), n_(n), K_(K), row_sums_(row_sums) {}

    // How often pack_part() is to be called.
    int64_t parts() const { return tile_side / rows_of_part * 2 * steps_ * ceil_div(n_, block_side); }

    void pack_part() {
        const bool whole = half_ + tile_side <= n_ && k_ + block_side <= K_;
        whole ? pack<true>() : pack<false>();
        row_ += rows_of_part;
        if (row_ < tile_side) return;
        row_ = 0;
        half_ += tile_side;
        if (half_ % block_side) return;
        if (O == Order::k_first && across) {  // rows of x from end to end, which hardware prefetches
            if (half_ < n_) return;
            half_ = 0;
            k_ += block_side;
            return;
        }
        half_ -= block_side;
        k_ += block_side;
        if (k_ < K_) return;
        k_ = 0;
        half_ += block_side;
    }
    void pack_all() {
        for (int64_t p = parts(); p > 0; --p) pack_part();
    }

private:
    static constexpr bool turns = (O == Order::k_last) == across;
    // Few enough that a core still looks ahead to the tile products after a part. With all 16 rows and three planes a
    // matmul took up to 1.2 times as long.
    static constexpr int64_t rows_of_part = planes == 1 ? 8 : 4;

    // Vector j, 0 or 1, of the tile's row i of words before it is turned: 16 k's of one row, or 16 rows of one k.
    const float* at(int64_t i, int64_t j) const {
        constexpr int64_t values = Stored::size;
        return O == Order::k_last ? x_ + (half_ + i) * ld_ + (k_ + j * tile_side) / values
                                  : x_ + (k_ + 2 * i + j) * ld_ + half_ / values;
    }
    template <bool whole>
    vfloat load(int64_t i, int64_t j) const {
        if (whole) return simd::load(at(i, j));
        const int64_t row = half_ + (O == Order::k_last ? i : 0),
                      k = k_ + (O == Order::k_last ? j * tile_side : 2 * i + j);
        if (row >= n_ || k >= K_) return vfloat{};
        return simd::load_n(at(i, j), O == Order::k_last ? K_ - k : n_ - row);
    }
    // The tile's row i of words, from pairs.
    template <bool whole>
    vfloat row_of_pairs(int64_t i) const {
        if constexpr (O == Order::k_last) {
            if (whole) return simd::load(at(i, 0));
            return half_ + i < n_ && k_ < K_ ? simd::load_n(at(i, 0), ceil_div(K_ - k_, Stored::size)) : vfloat{};
        } else {
            const int64_t k = k_ + 2 * i, left = whole ? 2 : K_ - k, n = whole ? tile_side : n_ - half_;
            return left > 0 && n > 0 ? Stored::across(Stored(), at(i, 0), ld_, left, n) : vfloat{};
        }
    }
    template <bool whole>
    void pack() {
        uint32_t* const to = words_ + (half_ / block_side * steps_ * block_side + k_) * planes * tile_side +
                             half_ % block_side * tile_side;
        const auto store = [&](int64_t plane, int64_t i, vfloat row) {
            simd::store(reinterpret_cast<float*>(to + 2 * plane * words_of_tile + i * tile_side), row);
        };
        vfloat sum{};
#pragma GCC unroll 16
        for (int64_t r = 0; r < rows_of_part; ++r) {
            const int64_t i = row_ + r;
            vfloat words[planes];
            if constexpr (paired) {
                words[0] = row_of_pairs<whole>(i);
            } else {
                const vfloat x = load<whole>(i, 0), y = load<whole>(i, 1);
                if constexpr (O == Order::k_first && !across) sum += x + y;
                if constexpr (O == Order::k_last)
                    split_along(x, y, words);
                else
                    split(x, y, words);
            }
            for (int64_t p = 0; p < planes; ++p)
                if constexpr (turns)
                    rows_[p][i] = words[p];
                else
                    store(p, i, words[p]);
            // For the next step's tile.
            const int64_t next = O == Order::k_last ? block_side / Stored::size : block_side * ld_;
            prefetch_line(at(i, 0) + next), prefetch_line(at(i, 1) + next);
        }
        if constexpr (O == Order::k_first && !across) add_to_row_sums(sum);
        if (!turns || row_ + rows_of_part < tile_side) return;
        for (int64_t p = 0; p < planes; ++p) {
            vfloat rows[tile_side];
            std::copy_n(rows_[p], tile_side, rows);
            simd::exchange_all<8>(rows);
            simd::exchange_all<4>(rows);
            simd::exchange_all<2>(rows);
            simd::exchange_all<1>(rows);
#pragma GCC unroll 16
            for (int64_t i = 0; i < tile_side; ++i) store(p, i, rows[i]);
        }
    }
    void add_to_row_sums(vfloat sum) {
        if (!row_sums_ || half_ >= n_) return;
        vfloat& sums = sums_[half_ / tile_side % 2];
        sums = k_ == 0 && row_ == 0 ? sum : sums + sum;
        if (k_ + block_side >= K_ && row_ + rows_of_part == tile_side)
            simd::store_n(row_sums_ + half_, simd::load_n(row_sums_ + half_, n_ - half_) + sums, n_ - half_);
    }

    uint32_t* words_;
    const float* x_;
    int64_t ld_, n_, K_;
    float* row_sums_;
    int64_t steps_ = ceil_div(K_, block_side);
    int64_t half_ = 0, k_ = 0, row_ = 0;  // the tile of words, and the row that is next
    vfloat sums_[2];
    vfloat rows_[planes][turns ? tile_side : 1];  // not turned yet
};

}  // namespace amx
#endif

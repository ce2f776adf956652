// Packed operands for the GEMM on AMX (gemm_amx.h).
//
// The instructions multiply pairs in K and add them to one sum, so operands are packed as words of two bf16, in tiles
// of 16 x 16 words, 1 KiB each. For a step of 32 in K:
//   A: word [m][p] holds A[m][p], A[m][p + 16]        B: word [p][n] holds B[p][n], B[p + 16][n]
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
void split(vfloat x, vfloat y, vfloat (&words)[planes]) {
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

// Packs n rows of A (or, with `across`, columns of B) and K values of each, in blocks of 32 rows. A block holds its
// steps one after another; a step holds two tiles of words for each plane, one row of words at a time. Rows and values
// that do not exist are zeros. The words of one k lie in one row of a tile with `across`, else in one column. A plane's
// tiles are 2 tiles behind those of the plane before.
// row_sums, if not null (k_first only): += the sum over K of each row.
template <Order O, bool across, int planes>
class Packing {
public:
    Packing(uint32_t* words, const float* x, int64_t ld, int64_t n, int64_t K, float* row_sums)
        : words_(words), x_(x), ld_(ld), n_(n), K_(K), row_sums_(row_sums) {}

    // The total number of rows of words.
    int64_t rows() const { return 2 * tile_side * steps_ * ceil_div(n_, block_side); }

    void pack_row() {
        if constexpr (turns) {
            if (row_ == 0) turn();
            put(first_[row_], second_[row_]);
        } else {
            put(load(row_, 0), load(row_, tile_side));
        }
        prefetch_next(row_, 0), prefetch_next(row_, tile_side);
        if (++row_ < tile_side) return;
        row_ = 0;
        half_ += tile_side;
        if (half_ % block_side) return;
        half_ -= block_side;
        k_ += block_side;
        if (k_ < K_) return;
        k_ = 0;
        half_ += block_side;
    }
    void pack_all() {
        for (int64_t r = rows(); r > 0; --r) pack_row();
    }

private:
    static constexpr bool turns = (O == Order::k_last) == across;

    // Row i of the tile's 16 rows of x, from column j on. Columns are k's if k_last, otherwise n's.
    vfloat load(int64_t i, int64_t j) const {
        if constexpr (O == Order::k_last)
            return half_ + i < n_ && k_ + j < K_ ? simd::load_n(x_ + (half_ + i) * ld_ + k_ + j, K_ - k_ - j)
                                                 : vfloat{};
        else
            return k_ + i + j < K_ && half_ < n_ ? simd::load_n(x_ + (k_ + i + j) * ld_ + half_, n_ - half_) : vfloat{};
    }
    // Prefetches the data that load(i, j) will read for the next step's tile.
    void prefetch_next(int64_t i, int64_t j) const {
        prefetch_line(O == Order::k_last ? x_ + (half_ + i) * ld_ + k_ + j + block_side
                                         : x_ + (k_ + i + j + block_side) * ld_ + half_);
    }
    void turn() {
        for (int64_t i = 0; i < tile_side; ++i) first_[i] = load(i, 0), second_[i] = load(i, tile_side);
        if (row_sums_ && half_ < n_) {
            vfloat sum{};
            for (int64_t i = 0; i < tile_side; i += 4)
                sum += ((first_[i] + second_[i]) + (first_[i + 1] + second_[i + 1])) +
                       ((first_[i + 2] + second_[i + 2]) + (first_[i + 3] + second_[i + 3]));
            vfloat& sums = sums_[half_ / tile_side % 2];
            sums = k_ == 0 ? sum : sums + sum;
            if (k_ + block_side >= K_)
                simd::store_n(row_sums_ + half_, simd::load_n(row_sums_ + half_, n_ - half_) + sums, n_ - half_);
        }
        const auto exchange = [](vfloat(&rows)[tile_side]) {
            simd::exchange_all<8>(rows);
            simd::exchange_all<4>(rows);
            simd::exchange_all<2>(rows);
            simd::exchange_all<1>(rows);
        };
        exchange(first_), exchange(second_);
    }
    void put(vfloat x, vfloat y) {
        vfloat of_planes[planes];
        split(x, y, of_planes);
        uint32_t* const to = words_ + (half_ / block_side * steps_ * block_side + k_) * planes * tile_side +
                             half_ % block_side * tile_side + row_ * tile_side;
        for (int p = 0; p < planes; ++p)
            simd::store(reinterpret_cast<float*>(to + 2 * p * words_of_tile), of_planes[p]);
    }

    uint32_t* words_;
    const float* x_;
    int64_t ld_, n_, K_;
    float* row_sums_;
    int64_t steps_ = ceil_div(K_, block_side);
    int64_t half_ = 0, k_ = 0, row_ = 0;  // the tile of words, and the row that is next
    vfloat sums_[2];
    vfloat first_[turns ? tile_side : 1], second_[turns ? tile_side : 1];  // turned: k = 0 … 15 and 16 … 31
};

}  // namespace amx
#endif

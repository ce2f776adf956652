// The GEMM on one thread: C (M,N) = A (M,K) · B (K,N), or +=, for any storage order of A and B, in fp32, or with
// operands rounded to bf16 and sums in fp32. The kernel (tile.h) keeps a tile of C in registers while it loops over K.
// The loops around it follow Goto & van de Geijn (2008) with the sides exchanged: A's tile stays in L1, and packed B in
// L2 (sizes.h). Each tile prefetches data of later tiles (prefetch_schedule.h). The sum of an element runs over K in an
// order that depends on K only.
//
// bf16 operands are multiplied in pairs of neighbours in K, two bf16 in the place of one float (words.h). Pairs are
// made while A and B are packed, so A is always packed, and a block spans twice the K.
#pragma once

#include <algorithm>

#include "device/cpu/gemm/order.h"
#include "device/cpu/gemm/packing.h"
#include "device/cpu/gemm/prefetch_schedule.h"
#include "device/cpu/gemm/sizes.h"
#include "device/cpu/gemm/tile.h"
#include "device/cpu/gemm/words.h"

namespace gemm {

// A reference to an epilogue, a function f(m, n, left, sums) that is called for each vector of each finished tile while
// the tile is in L1: `sums` holds the result of the GEMM for C[m][n …], in `left` lanes (W or fewer), and f writes C.
// It is called for all rows of a vector of columns before the next one, so that what depends on the columns only, and
// constants, stay in registers. A thread calls it for a row's columns from left to right. f must outlive the GEMM.
class EpilogueRef {
public:
    EpilogueRef() = default;
    // f may also be f(rows, n, lanes, sums, ld), called once for the columns of a tile and some of its rows.
    // columns_together: the threads' columns begin at multiples of this number. writes_c: false if f does not write C,
    // which then is scratch memory, needed only if K has several blocks.
    template <class F>
    EpilogueRef(const F& f, int64_t columns_together = 1, bool writes_c = true)
        : f_(&f),
          columns_together_(columns_together),
          writes_c_(writes_c),
          call_([](const void* p, Range rows, int64_t n, int64_t lanes, const float* sums, int64_t ld) {
              const F& f_of = *static_cast<const F*>(p);
              if constexpr (std::is_invocable_v<const F&, Range, int64_t, int64_t, const float*, int64_t>) {
                  f_of(rows, n, lanes, sums, ld);
              } else {
                  int64_t i = 0;
                  for (; i + W <= lanes; i += W)
                      for (int64_t m = rows.begin; m < rows.end; ++m)
                          f_of(m, n + i, int64_t{W}, sums + (m - rows.begin) * ld + i);
                  if (i < lanes)
                      for (int64_t m = rows.begin; m < rows.end; ++m)
                          f_of(m, n + i, lanes - i, sums + (m - rows.begin) * ld + i);
              }
          }) {}
    explicit operator bool() const { return f_; }
    int64_t columns_together() const { return columns_together_; }
    bool writes_c() const { return writes_c_; }
    // For the rows and `lanes` columns from n on. sums has rows of ld floats, and may be C itself.
    void operator()(Range rows, int64_t n, int64_t lanes, const float* sums, int64_t ld) const {
        if (f_) call_(f_, rows, first_column_ + n, lanes, sums, ld);
    }
    // The epilogue of a GEMM that computes C's columns from n on.
    EpilogueRef from_column(int64_t n) const {
        EpilogueRef part = *this;
        part.first_column_ += n;
        return part;
    }

private:
    const void* f_ = nullptr;
    int64_t columns_together_ = 1, first_column_ = 0;
    bool writes_c_ = true;
    void (*call_)(const void*, Range, int64_t, int64_t, const float*, int64_t) = nullptr;
};

// The position of the loops over columns and K: over blocks of columns, in each of them over blocks of words of K, and
// in each of those over groups of columns whose panels of B are packed together.
class LoopPosition {
public:
    LoopPosition(Range columns, int64_t words, int64_t block_panels, int64_t group_panels)
        : columns_(columns),
          words_(words),
          group_panels_(group_panels),
          k_blocks_(ceil_div(words, KC)),
          panels_(ceil_div(columns.size(), NR)),
          n_blocks_(words > 0 ? ceil_div(panels_, block_panels) : 0) {}

    bool is_end() const { return nb_ >= n_blocks_; }
    Range columns() const {
        const Range p = part_of(panels_, n_blocks_, nb_);
        const int64_t first = p.begin + group_ * group_panels_, last = std::min(p.end, first + group_panels_);
        return {columns_.begin + first * NR, std::min(columns_.end, columns_.begin + last * NR)};
    }
    Range words() const { return part_of(words_, k_blocks_, kb_); }
    int64_t groups() const { return ceil_div(part_of(panels_, n_blocks_, nb_).size(), group_panels_); }
    bool is_first_group() const { return group_ == 0; }
    bool is_first_k() const { return kb_ == 0; }
    bool is_last_k() const { return kb_ == k_blocks_ - 1; }

    void to_next_group() {
        if (++group_ == groups()) to_next_k();
    }
    void to_next_k() {
        group_ = 0;
        if (++kb_ == k_blocks_) kb_ = 0, ++nb_;
    }

private:
    Range columns_;
    int64_t words_, group_panels_, k_blocks_, panels_, n_blocks_, nb_ = 0, kb_ = 0, group_ = 0;
};

// The kernel for a tile of some rows and the first `needed` columns of a panel of `lanes` columns. It may compute more.
template <Order A, class Words>
TileKernel kernel_for(int64_t rows, int64_t needed, int64_t lanes) {
    return for_width(lanes, [&](auto panel) {
        return for_width(needed, [&](auto vectors) {
            if constexpr (vectors < panel)
                if (rows == MR) return first_columns_kernel<A, vectors, panel, Words>;
            return tile_kernel<A, panel, Words>(rows);
        });
    });
}

// Computes C's rectangle [rows) x [columns), or its lower part, on the calling thread. `panels` is scratch memory of
// scratch_floats() floats. row_sums (M), if not null: += A's sums over K (k_first A only). A's memory consists of words
// StoredA, of neighbours in a row.
template <class Words, Order A, Order B, class StoredA = Floats>
void block(float* panels, Range rows, Range columns, int64_t K, const float* a, int64_t lda, const float* b,
           int64_t ldb, float* c, int64_t ldc, Store store, EpilogueRef epilogue, float* row_sums,
           Part part = Part::whole) {
    constexpr int64_t size = Words::size;
    constexpr int64_t values = StoredA::size;  // of A, in the place of a float
    constexpr bool packs_a = A == Order::k_first || size > values;
    const bool few = rows.size() <= FEW;
    const int64_t m_tiles = ceil_div(rows.size(), MR), a_at_once = packs_a ? MC : MR;
    float* const packed_a = panels + KC * (few ? NR : NC);
    const auto a_from = [=](int64_t m, int64_t word) {
        return a + (A == Order::k_last ? m * lda + word * size / values : word * size * lda + m / values);
    };
    const auto prefetch_a = [=](int64_t m, int64_t word, int64_t count, int64_t tiles) {
        const bool along = A == Order::k_last;
        return PrefetchSchedule(A, a_from(m, word), lda, along ? count : ceil_div(count, values),
                                along ? size / values : size, tiles);
    };
    const auto b_from = [=](int64_t word, int64_t n) {
        return b + (B == Order::k_last ? n * ldb + word * size : word * size * ldb + n);
    };
    LoopPosition place(columns, ceil_div(K, size), block_columns(rows.size()) / NR, few ? 1 : NC / NR), next = place;
    PrefetchSchedule of_a;
    for (; !place.is_end() && m_tiles > 0; place = next) {
        next.to_next_group();
        const Range group = place.columns(), w = place.words();
        const int64_t ks = std::min(K, w.end * size) - w.begin * size, n_panels = ceil_div(group.size(), NR);
        pack_panels<B, Words>(panels, b_from(w.begin, group.begin), ldb, ks, group.size());
        if (few && place.is_first_group()) {
            LoopPosition after = place;
            after.to_next_k();
            of_a = after.is_end() ? PrefetchSchedule()
                                  : prefetch_a(rows.begin, after.words().begin, rows.size(), m_tiles * place.groups());
        }
        PrefetchSchedule of_b;
        // Rows above the group have nothing in its columns. A strip of A is packed from its first row on.
        const int64_t at_once = few ? MR : MC, skipped = part == Part::lower ? group.begin / at_once * at_once : 0;
        for (int64_t m = rows.begin + skipped; m < rows.end; m += MR) {
            const int64_t done = m - rows.begin, left = rows.end - m, strip = done % MC,
                          tile_rows = std::min<int64_t>(MR, left), tiles_left = ceil_div(left, MR);
            if (!next.is_end() && tiles_left == std::min(m_tiles, FEW / MR))
                of_b = {B,    b_from(next.words().begin, next.columns().begin),
                        ldb,  next.columns().size(),
                        size, tiles_left * n_panels};
            float* const strip_a = packed_a + (few ? (done - strip) * w.size() : 0);
            if (packs_a && strip == 0 && (!few || place.is_first_group())) {
                const int64_t count = std::min(MC, left);
                if constexpr (A == Order::k_first)
                    pack_rows<Words, StoredA>(strip_a, a_from(m, w.begin), lda, ks, count,
                                              row_sums && group.begin == 0 ? row_sums + m : nullptr);
                else
                    pack_rows<Words>(strip_a, a_from(m, w.begin), lda, ks, count);
            }
            if (!few && done % a_at_once == 0)
                of_a = left <= a_at_once ? PrefetchSchedule()
                                         : prefetch_a(m + a_at_once, w.begin, std::min(a_at_once, left - a_at_once),
                                                      a_at_once / MR * n_panels);
            const float* const tile_a = packs_a ? strip_a + strip * w.size() : a_from(m, w.begin);
            const int64_t tile_lda = A == Order::k_first ? tile_rows : packs_a ? w.size() : lda;
            const int64_t columns_end = part == Part::lower ? std::min(group.end, m + tile_rows) : group.end;
            for (int64_t n = group.begin; n < columns_end; n += NR) {
                const int64_t lanes = std::min<int64_t>(NR, group.end - n), needed = std::min(lanes, columns_end - n);
                float* const c_tile = c + m * ldc + n;
                PrefetchLines prefetches =
                    store == Store::stream || !epilogue.writes_c() ? PrefetchLines() : PrefetchLines(c_tile, ldc);
                of_a.add_share(prefetches);
                of_b.add_share(prefetches);
                // In L1 the lines of C's rows often exclude each other. An epilogue that finds the sums beside C writes
                // each line once, and GELU takes half as long.
                const bool beside = epilogue && place.is_first_k() && place.is_last_k();
                alignas(64) float sums[MR * NR];
                float* const out = beside ? sums : c_tile;
                const int64_t ld_out = beside ? NR : ldc;
                const TileKernel compute = kernel_for<A, Words>(tile_rows, needed, lanes);
                compute(w.size(), tile_a, tile_lda, panels + (n - group.begin) * w.size(), out, ld_out,
                        place.is_first_k() ? store : Store::add, lanes, prefetches);
                if (place.is_last_k()) epilogue({m, m + tile_rows}, n, lanes, out, ld_out);
            }
        }
    }
}

}  // namespace gemm

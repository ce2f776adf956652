// Which cache lines a tile prefetches while it computes, and when.
#pragma once

#include <cstdint>

#include "device/cpu/gemm/order.h"
#include "device/cpu/prefetch.h"

namespace gemm {

// Cache lines to prefetch, spread over the k loop of a tile: issued at once they would occupy every line-fill buffer.
class PrefetchLines {
public:
    static constexpr int64_t step = 8;  // from one k, in words, to the next

    PrefetchLines() = default;
    // The tile's part of C, c with rows of ldc, is prefetched as well, to be written.
    PrefetchLines(const float* c, int64_t ldc) : c_(c), ldc_(ldc) {}

    // Adds x + k * stride for k = 0, step, …; lines that do not fit are left out.
    void add(const float* x, int64_t stride) {
        if (count_ < most) lines_[count_++] = {x, stride};
    }
    void issue(int64_t k) const {
        for (int i = 0; i < count_; ++i) prefetch_line(lines_[i].x + k * lines_[i].stride);
    }
    [[gnu::always_inline]] void issue_row_of_c(int64_t row, int64_t floats) const {
        if (c_) prefetch_range<Access::write>(c_ + row * ldc_, floats);
    }

private:
    static constexpr int most = 64;
    struct {
        const float* x;
        int64_t stride;
    } lines_[most];
    int count_ = 0;
    const float* c_ = nullptr;
    int64_t ldc_ = 0;
};

// Prefetch schedule for the data that the next `tiles` tiles will leave to the ones after them: n rows of A or columns
// of B from x on, in words of `size` k's, for as many k's as these tiles have. Each tile prefetches its share.
class PrefetchSchedule {
public:
    PrefetchSchedule() = default;
    PrefetchSchedule(Order order, const float* x, int64_t ld, int64_t n, int64_t size, int64_t tiles)
        : x_(x),
          ld_(ld),
          stride_(order == Order::k_last ? size : size * ld),
          across_(order == Order::k_last ? 1 : ceil_div(n, line)),
          lines_(order == Order::k_last ? n : across_ * PrefetchLines::step * size),
          tiles_(tiles) {}

    void add_share(PrefetchLines& lines) {
        for (due_ += lines_; due_ >= tiles_; due_ -= tiles_) {
            lines.add(x_ + i_ * line, stride_);
            if (++i_ == across_) i_ = 0, x_ += ld_;
        }
    }

private:
    static constexpr int64_t line = 16;
    const float* x_ = nullptr;
    int64_t ld_ = 0, stride_ = 0, across_ = 0, lines_ = 0, tiles_ = 1, i_ = 0, due_ = 0;
};

}  // namespace gemm

// Some rows of a matrix, as torch.index_select and torch.Tensor.index_add_ take them: index (S) names each row once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/device.h"
#include "layers/used_rows.h"

// out (S,C) = rows index[0], index[1], … of inp (V,C)
template <HostDevice Device, class T>
void index_select(Device& dev, T* out, const T* inp, const int32_t* index, int64_t S, int64_t C) {
    const Timed timed(dev, "index_select", 0, 8 * prod(S, C));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < S; ++i) std::copy_n(inp + index[i] * C, C, out + i * C);
}

// The rows of x that are used become 0: then all of them are.
template <HostDevice Device, class T>
void zero_used(Device& dev, T* x, const UsedRows& rows) {
    const Timed timed(dev, "zero_used", 0, 4 * prod(rows.count(), rows.columns));
#pragma omp parallel for schedule(static)
    for (int64_t v = 0; v < rows.rows; ++v)
        if (rows.used[v]) std::fill_n(x + v * rows.columns, rows.columns, T(0));
}

// Rows index[0], index[1], … of out (V,C) += the rows of inp (S,C)
template <HostDevice Device, class T>
void index_add(Device& dev, T* out, const T* inp, const int32_t* index, int64_t S, int64_t C) {
    const Timed timed(dev, "index_add", 0, 12 * prod(S, C));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < S; ++i)
        for (int64_t c = 0; c < C; ++c) out[index[i] * C + c] += inp[i * C + c];
}

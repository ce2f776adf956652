// Some rows of a matrix, as torch.index_select and torch.Tensor.index_add_ take them: index (S) names each row once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/device.h"

namespace index_rows {

template <class T>
void select(T* out, const T* inp, const int32_t* index, int64_t S, int64_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < S; ++i) std::copy_n(inp + index[i] * C, C, out + i * C);
}

template <class T>
void add(T* out, const T* inp, const int32_t* index, int64_t S, int64_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < S; ++i)
        for (int64_t c = 0; c < C; ++c) out[index[i] * C + c] += inp[i * C + c];
}

}  // namespace index_rows

// out (S,C) = rows index[0], index[1], … of inp (V,C)
template <class T>
void index_select(Reference<T>&, T* out, const T* inp, const int32_t* index, int64_t S, int64_t C) {
    index_rows::select(out, inp, index, S, C);
}
inline void index_select(Cpu& dev, float* out, const float* inp, const int32_t* index, int64_t S, int64_t C) {
    const Timed timed(dev, "index_select", 0, 8 * prod(S, C));
    index_rows::select(out, inp, index, S, C);
}

// Rows index[0], index[1], … of out (V,C) += the rows of inp (S,C)
template <class T>
void index_add(Reference<T>&, T* out, const T* inp, const int32_t* index, int64_t S, int64_t C) {
    index_rows::add(out, inp, index, S, C);
}
inline void index_add(Cpu& dev, float* out, const float* inp, const int32_t* index, int64_t S, int64_t C) {
    const Timed timed(dev, "index_add", 0, 12 * prod(S, C));
    index_rows::add(out, inp, index, S, C);
}

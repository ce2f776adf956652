// How a norm divides its input into rows, each of which is normalized separately.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

struct Rows {
    int64_t N = 1, C = 1;  // N rows of C values, one after the other
};

// (B,T,C) over (C) are B·T rows of C values, images (B,C,H,W) over (C,H,W) are B rows of C·H·W, and an RNN's (T,B,d)
// over (d) are T·B rows of d. As for torch.nn.LayerNorm, the input's shape must end with normalized_shape; otherwise
// std::invalid_argument is thrown.
inline Rows normalized_rows(const std::vector<int64_t>& shape, const std::vector<int64_t>& normalized_shape) {
    const auto text = [](const std::vector<int64_t>& dimensions) {
        std::string s;
        for (const int64_t d : dimensions) s += (s.empty() ? "" : ",") + std::to_string(d);
        return "(" + s + ")";
    };
    const size_t dims = shape.size(), normalized = normalized_shape.size();
    bool ok = normalized > 0 && normalized <= dims;
    for (const int64_t d : shape) ok = ok && d >= 0;
    for (size_t i = 0; ok && i < normalized; ++i) ok = normalized_shape[i] == shape[dims - normalized + i];
    if (!ok)
        throw std::invalid_argument("normalized_shape " + text(normalized_shape) +
                                    ": expected one or more of the last dimensions of the input's shape " +
                                    text(shape));
    Rows rows;
    for (size_t i = 0; i < dims; ++i) (i < dims - normalized ? rows.N : rows.C) *= shape[i];
    return rows;
}

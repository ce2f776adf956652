// How a model's weight matrices are stored. Training needs fp32; inference may use less memory.
#pragma once

#include <cstdint>

enum class WeightType { fp32, bf16, int8 };

// The floats that a row of K values takes. A row of int8 also holds a scale.
constexpr int64_t weight_floats(WeightType type, int64_t K) {
    if (type == WeightType::bf16) return (K + 1) / 2;
    if (type == WeightType::int8) return 1 + (K + 3) / 4;
    return K;
}

// Conversion of a model's parameters from fp32 to bf16 or int8, for inference.
#pragma once

#include <algorithm>

#include "gpt2_tensors.h"
#include "device/device.h"
#include "device/cpu/weight_rows.h"

// Converts the parameters (ParameterTable(config).size floats) to those of `table`, if the device has other weights
// than fp32, and frees the memory that is left. Piece by piece and in place, as none becomes larger if C > 1: beside
// the parameters only one matrix is in memory.
inline void convert_weights(Cpu& cpu, HostBuffer<float>& parameters, const GPT2Config& config,
                            const ParameterTable& table) {
    if (cpu.weights == WeightType::fp32) return;
    const ParameterTable loaded(config);
    for (size_t i = 0; i < table.rows.size(); ++i) {
        const Parameter& p = table.rows[i];
        const HostBuffer<float> converted = host_allocate<float>(p.matmul_weight ? p.stride : 0);
        for (int64_t l = 0; l < p.copies; ++l) {
            const float* const from = parameters.get() + loaded.rows[i].at(l);
            if (p.matmul_weight) store_weights(cpu.weights, converted.get(), from, p.shape[0], p.shape[1]);
            std::copy_n(p.matmul_weight ? converted.get() : from, p.stride, parameters.get() + p.at(l));
        }
    }
    host_shrink(parameters, table.size);
}
template <class Device, class Buffer>
void convert_weights(Device&, Buffer&, const GPT2Config&, const ParameterTable&) {}  // other devices keep their type

// Conversion of a model's parameters from fp32 to bf16 or int8, for inference.
#pragma once

#include <algorithm>

#include "gpt2_tensors.h"
#include "device/device.h"
#include "device/cpu/weight_rows.h"

// Converts the parameters (ParameterTable(config).size floats) to those of `table`, and frees the memory that is left.
// Tensor by tensor and in place, as none becomes larger if C > 1: beside the parameters only one tensor is in memory.
inline void convert_weights(Cpu& cpu, HostBuffer<float>& parameters, const GPT2Config& config,
                            const ParameterTable& table) {
    const ParameterTable loaded(config);
    for (size_t i = 0; i < table.rows.size(); ++i) {
        const Parameter& p = table.rows[i];
        float* const from = parameters.get() + loaded.rows[i].offset;
        const int64_t floats = p.copies * p.stride;
        HostBuffer<float> converted;
        if (p.matmul_weight) {
            converted = host_allocate<float>(floats);
            store_weights(cpu.weights, converted.get(), from, p.copies * p.shape[0], p.shape[1]);
        }
        std::copy_n(converted ? converted.get() : from, floats, parameters.get() + p.offset);
    }
    host_shrink(parameters, table.size);
}
template <class Device, class Buffer>
void convert_weights(Device&, Buffer&, const GPT2Config&, const ParameterTable&) {}  // other devices keep their type

// Conversion between fp32 and bf16 on the Cuda device, rounding to nearest or stochastically.
#pragma once

#include "device/cuda/common.cuh"
#include "device/random.h"
#include "device/update.h"

// Adds 16 random bits to x and returns the upper 16 bits: |x| is rounded up with a probability equal to the fraction
// that bf16 cannot hold. Values that bf16 holds, infinity among them, do not change; NaN stays NaN.
__device__ __forceinline__ bf16 round_by(float x, unsigned random16) {
    const unsigned bits = __float_as_uint(x);
    bf16 y;
    y.bits = static_cast<uint16_t>((x != x ? bits | 0x400000 : bits + random16) >> 16);
    return y;
}

// A skipped update changed no parameter, so none is rounded again.
__device__ __forceinline__ bool is_skipped(const StepStatus* status) { return status && !status->apply; }

// A thread rounds 8 values with one 128-bit random number, 16 bits each.
template <bool PACKED>
__global__ void __launch_bounds__(elements_block)
    round_stochastically_kernel(bf16* __restrict__ out, const float* __restrict__ in, int64_t n,
                                const UpdateParams* __restrict__ params, const StepStatus* __restrict__ status,
                                int64_t index) {
    if (is_skipped(status)) return;
    const int64_t thread = int64_t{blockIdx.x} * elements_block + threadIdx.x, first = 8 * thread - index % 8;
    if (first >= n) return;
    const Philox random = Random{params->rounding_seed, Purpose::rounding, params->step}.bits(index / 8 + thread);
    if (PACKED && first >= 0 && first + 8 <= n) {
        float x[8];
        bf16 y[8];
        load_once(x, in + first);
        UNROLL for (int v = 0; v < 8; ++v) y[v] = round_by(x[v], random.bits16(v));
        int4 packed_values;
        memcpy(&packed_values, y, sizeof y);
        __stwb(reinterpret_cast<int4*>(out + first), packed_values);
    } else {
        UNROLL for (int v = 0; v < 8; ++v) if (first + v >= 0 && first + v < n) out[first + v] =
            round_by(in[first + v], random.bits16(v));
    }
}

// out (n) = in (n), each value rounded to one of its two neighbours in bf16, the nearer one with the higher
// probability, so that the expected value is in's. The same rounding_seed, step and index give the same bits. Nothing
// is written if status->apply is 0; a null status rounds always. params and status are in device memory. `index` is
// that of the first value, if these are a part of a buffer.
inline void round_stochastically(Cuda& dev, bf16* out, const float* in, int64_t n, const UpdateParams* params,
                                 const StepStatus* status, int64_t index = 0) {
    const Timed timed(dev, "round_stochastically", 0, 6 * prod(n));
    if (n == 0) return;
    const auto blocks = static_cast<unsigned>((n + index % 8 + 8 * elements_block - 1) / (8 * elements_block));
    if (can_pack<bf16>(8, out - index % 8, in - index % 8))
        LAUNCH(round_stochastically_kernel<true>, blocks, elements_block, 0, dev.stream, out, in, n, params, status,
               index);
    else
        LAUNCH(round_stochastically_kernel<false>, blocks, elements_block, 0, dev.stream, out, in, n, params, status,
               index);
}

template <int V, class Out, class In>
__global__ void __launch_bounds__(elements_block)
    convert_kernel(Out* __restrict__ out, const In* __restrict__ in, int64_t n, const StepStatus* __restrict__ status) {
    if (is_skipped(status)) return;
    each_element<V>(n, [&]<int W>(int64_t i) {
        float x[W];
        load_once<W>(x, in + i);
        store(out + i, x);
    });
}

// out (n) = in (n), float to bf16 (to nearest, ties to even) or bf16 to float. status: as for round_stochastically.
template <class Out, class In>
void convert(Cuda& dev, Out* out, const In* in, int64_t n, const StepStatus* status = nullptr) {
    const Timed timed(dev, "convert", 0, prod(n, sizeof(Out) + sizeof(In)));
    launch_elements<bf16>(
        n,
        [&]<int V>(unsigned blocks) {
            LAUNCH((convert_kernel<V, Out, In>), blocks, elements_block, 0, dev.stream, out, in, n, status);
        },
        out, in);
}

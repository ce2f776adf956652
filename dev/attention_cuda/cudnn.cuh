// cuDNN's flash attention, for comparison: make -C dev attention_cuda USE_CUDNN=1. It uses cudnn-frontend's graphs
// (NVIDIA, cuDNN developer guide, "Attention"): attention is one operation on tensors that are named by numbers and
// laid out by strides, so that q, k and v are read directly from qkv.
#pragma once

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <array>
#include <cstdio>
#include <map>
#include <unordered_map>

#include "device/cuda/common.cuh"

namespace attention_cudnn {

namespace fe = cudnn_frontend;
using Tensor = fe::graph::Tensor_attributes;
enum Name : int64_t { Q, K, V, OUT, LOGSUMEXP, DOUT, DQ, DK, DV };
using Addresses = std::unordered_map<int64_t, void*>;

struct Shape {
    int64_t B, T, C, NH;
    auto operator<=>(const Shape&) const = default;
};

struct Plan {
    fe::graph::Graph graph;
    int64_t workspace = 0;  // bytes
    bool found = false;
};

// The library's handle, and the plans of each shape that has been used. One for all devices of the program.
struct Library {
    cudnnHandle_t handle = nullptr;
    std::map<Shape, Plan> forward, backward;
    Library() {
        const cudnnStatus_t status = cudnnCreate(&handle);
        if (status != CUDNN_STATUS_SUCCESS)
            throw std::runtime_error(std::string("cudnnCreate: ") + cudnnGetErrorString(status));
    }
    Library(const Library&) = delete;
    ~Library() {
        forward.clear(), backward.clear();
        cudnnDestroy(handle);
    }
};
inline Library& library() {
    static Library it;
    return it;
}

// t (B,NH,T,hs) of bf16, one position's values `row` after another's
inline Tensor& lay_out(Tensor& t, Name name, const Shape& s, int64_t row) {
    const int64_t hs = s.C / s.NH;
    return t.set_uid(name).set_dim({s.B, s.NH, s.T, hs}).set_stride({s.T * row, hs, row, 1});
}
// logsumexp (B,NH,T,1) of floats
inline Tensor& lay_out_sums(Tensor& t, const Shape& s) {
    return t.set_uid(LOGSUMEXP)
        .set_dim({s.B, s.NH, s.T, 1})
        .set_stride({s.NH * s.T, s.T, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
}
inline std::shared_ptr<Tensor> input(fe::graph::Graph& graph, Name name, const Shape& s, int64_t row) {
    Tensor t;
    return graph.tensor(lay_out(t, name, s, row));
}

inline void describe_forward(fe::graph::Graph& graph, const Shape& s, float scale) {
    auto [out, sums] =
        graph.sdpa(input(graph, Q, s, 3 * s.C), input(graph, K, s, 3 * s.C), input(graph, V, s, 3 * s.C),
                   fe::graph::SDPA_attributes().set_attn_scale(scale).set_causal_mask(true).set_generate_stats(true));
    lay_out(*out, OUT, s, s.C).set_output(true);
    lay_out_sums(*sums, s).set_output(true);
}

inline void describe_backward(fe::graph::Graph& graph, const Shape& s, float scale) {
    Tensor sums;
    auto [dq, dk, dv] = graph.sdpa_backward(
        input(graph, Q, s, 3 * s.C), input(graph, K, s, 3 * s.C), input(graph, V, s, 3 * s.C),
        input(graph, OUT, s, s.C), input(graph, DOUT, s, s.C), graph.tensor(lay_out_sums(sums, s)),
        fe::graph::SDPA_backward_attributes().set_attn_scale(scale).set_causal_mask(true).set_deterministic_algorithm(
            true));
    lay_out(*dq, DQ, s, 3 * s.C).set_output(true);
    lay_out(*dk, DK, s, 3 * s.C).set_output(true);
    lay_out(*dv, DV, s, 3 * s.C).set_output(true);
}

// A plan is made in the first pass with a shape, which no CUDA graph records.
template <class Describe>
Plan& plan_for(std::map<Shape, Plan>& plans, const Shape& shape, const char* what, const Describe& describe) {
    const auto [entry, is_new] = plans.try_emplace(shape);
    Plan& plan = entry->second;
    if (!is_new) return plan;
    plan.graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    describe(plan.graph, shape, 1 / std::sqrt(static_cast<float>(shape.C / shape.NH)));
    fe::error_t error = plan.graph.build(library().handle, {fe::HeurMode_t::A});
    plan.found = error.is_good() && plan.graph.get_workspace_size(plan.workspace).is_good();
    if (!plan.found)
        std::fprintf(stderr, "cuDNN has no %s for B=%lld T=%lld C=%lld NH=%lld, so ours is used: %s\n", what,
                     static_cast<long long>(shape.B), static_cast<long long>(shape.T), static_cast<long long>(shape.C),
                     static_cast<long long>(shape.NH), error.get_message().c_str());
    return plan;
}

inline bool run(Cuda& dev, const Plan& plan, Addresses addresses) {
    if (!plan.found) return false;
    float* const workspace = plan.workspace ? dev.scratch((plan.workspace + 3) / 4) : nullptr;
    if (cudnnSetStream(library().handle, dev.stream) != CUDNN_STATUS_SUCCESS)
        throw std::runtime_error("cudnnSetStream failed");
    if (fe::error_t error = plan.graph.execute(library().handle, addresses, workspace); error.is_bad())
        throw std::runtime_error("cuDNN's attention: " + error.get_message());
    return true;
}

inline void* address(const void* p) { return const_cast<void*>(p); }

// The same functions as in attention_mma. They return false if cuDNN does not support the shape.
inline bool forward(Cuda& dev, bf16* out, float* logsumexp, const bf16* qkv, int64_t B, int64_t seq, int64_t C,
                    int64_t NH) {
    if (!can_pack<bf16>(C / NH, out, qkv)) return false;
    const Plan& plan = plan_for(library().forward, {B, seq, C, NH}, "attention_forward", describe_forward);
    return run(dev, plan,
               {{Q, address(qkv)},
                {K, address(qkv + C)},
                {V, address(qkv + 2 * C)},
                {OUT, address(out)},
                {LOGSUMEXP, address(logsumexp)}});
}
inline bool backward(Cuda& dev, bf16* dqkv, const bf16* dout, const bf16* out, const bf16* qkv, const float* logsumexp,
                     int64_t B, int64_t seq, int64_t C, int64_t NH) {
    if (!can_pack<bf16>(C / NH, dqkv, dout, out, qkv)) return false;
    const Plan& plan = plan_for(library().backward, {B, seq, C, NH}, "attention_backward", describe_backward);
    return run(dev, plan,
               {{Q, address(qkv)},
                {K, address(qkv + C)},
                {V, address(qkv + 2 * C)},
                {OUT, address(out)},
                {LOGSUMEXP, address(logsumexp)},
                {DOUT, address(dout)},
                {DQ, address(dqkv)},
                {DK, address(dqkv + C)},
                {DV, address(dqkv + 2 * C)}});
}

}  // namespace attention_cudnn

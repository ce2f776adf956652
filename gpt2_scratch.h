// The scratch memory of a GPT-2 on the Cpu: the largest need of any layer, for the shapes with which gpt2.h calls them.
// make_model reserves it, and the memory plan counts it.
#pragma once

#include "gpt2_tensors.h"
#include "layers/layers.h"

struct CpuUse {
    int64_t B, T;  // the largest batch
    ActivationPolicy policy;
    bool muon = false;   // the optimizer, in training
    bool losses = true;  // false: only append() is called
    CacheSize cache = {};
    WeightType weights = WeightType::fp32;
    bool sampled_softmax = false;  // in training
};

inline CpuScratch gpt2_scratch(const GPT2Config& config, const CpuUse& use, MatmulKind matmul_kind, int64_t threads) {
    const int64_t N = use.B * use.T, C = config.channels, V = config.vocab;
    const ParameterTable table(config);
    CpuScratch scratch;
    int64_t of_thread = std::max(attention_forward_scratch(use.T, C, config.heads, matmul_kind),
                                 cached_attention::scratch_floats(use.cache.positions));
    if (use.policy != ActivationPolicy::inference) of_thread = std::max(of_thread, gemm::scratch_floats(matmul_kind));
    for (const int64_t K : {C, 4 * C})
        of_thread = std::max(of_thread, gemm::weights_scratch_floats(matmul_kind, use.weights, N, K));
    if (use.losses) scratch.shared = classifier::shared_floats(N, C, V);
    std::vector<int64_t> of_matrices;
    if (use.policy != ActivationPolicy::inference) {
        of_thread = std::max(of_thread, attention_backward_scratch(use.T, C, config.heads, matmul_kind));
        scratch.shared =
            std::max({scratch.shared, RowRuns(N, C).shared_floats(), global_norm::shared_floats(table.size)});
        scratch.halves = gemm::halves_floats(gemm::Order::k_first, V, C, std::min(N, classifier::most_rows(V)));
        if (use.sampled_softmax) {
            scratch.shared = std::max(scratch.shared, classifier::most_shared_floats(N, C, V));
            scratch.halves = std::max(scratch.halves, std::min(V * C, gemm::most_halved) + V);
        }
        for (const Parameter& p : table.rows) {
            if (!p.muon()) continue;
            scratch.halves =
                std::max(scratch.halves, gemm::halves_floats(gemm::Order::k_first, p.shape[0], p.shape[1], N));
            if (use.muon)
                of_matrices.insert(of_matrices.end(), static_cast<size_t>(p.copies),
                                   muon::scratch_floats(matmul_kind, p.shape[0], p.shape[1]));
        }
    }
    scratch.threads = muon::thread_floats(of_matrices, threads);
    scratch.threads.resize(static_cast<size_t>(threads));
    for (int64_t& floats : scratch.threads) floats = std::max(floats, of_thread);
    return scratch;
}

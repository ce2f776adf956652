// The interface of device_model.h for the CPU: train_gpt2 is linked with this file.
#include <limits>

#include <omp.h>

#include "program/device_model.h"
#include "gpt2.h"
#include "gpt2_nonfinite.h"
#include "gpt2_scratch.h"
#include "io/file/error.h"
#include "device/platform.h"
#include "device/cpu/peak.h"
#include "program/memory_plan.h"
#include "program/threads.h"

namespace {

MatmulKind matmul_kind(const Options& options) {
    return options.matmul == "bf16" ? MatmulKind::bf16 : MatmulKind::fp32;
}

WeightType weight_type(const Options& options) {
    return options.weights == "int8"   ? WeightType::int8
           : options.weights == "bf16" ? WeightType::bf16
                                       : WeightType::fp32;
}

CpuScratch scratch(const Options& options, const GPT2Config& config, int64_t B, int64_t T, ActivationPolicy policy) {
    return gpt2_scratch(config,
                        {.B = B,
                         .T = T,
                         .policy = policy,
                         .muon = optimizer_of(options) != Optimizer::adamw,
                         .losses = options.command != "generate",
                         .cache = cache_size(options, config),
                         .weights = weight_type(options),
                         .sampled_softmax = options.sampled_softmax > 0},
                        matmul_kind(options), omp_get_max_threads());
}

}  // namespace

void connect_devices(const Options&, Ranks&) {}

std::string plan_memory(const Options& options, const GPT2Config& config, int64_t B, int64_t T, ActivationPolicy policy,
                        const std::string& remedy, Ranks& ranks) {
    if (matmul_kind(options) == MatmulKind::bf16 && !has_bf16_matmuls())
        throw InputError(
            "--matmul: bf16 needs AVX512-BF16, which the CPU that this program was built for lacks; leave it out");
    if (weight_type(options) != WeightType::fp32 && config.channels == 1)
        throw InputError("--weights: " + options.weights + " saves nothing with 1 channel; leave it out");
    // With Muon the second moments of matrices are zeros that are never written, so they take no memory, and neither
    // does the momentum of token embeddings with a sampled softmax. With NorMuon
    // it is the page, of 2 MiB if the system has large ones, that its squares lie in.
    constexpr int64_t large_page = (2 << 20) / 4, all = std::numeric_limits<int64_t>::max();
    const Optimizer optimizer = optimizer_of(options);
    MemoryPlan plan(config, B, T, policy, cache_size(options, config),
                    {.second_moments_of_a_matrix = optimizer == Optimizer::muon      ? 0
                                                   : optimizer == Optimizer::normuon ? large_page
                                                                                     : all,
                     .momentum_of_embedding = options.sampled_softmax == 0,
                     .sharing = sharing(options, ranks)},
                    [&] { return scratch(options, config, B, T, policy).bytes(); });
    if (options.sampled_softmax > 0 && policy != ActivationPolicy::inference) {
        const int64_t tokens = std::min(config.vocab, B * T + options.sampled_softmax);
        plan.rows.emplace_back("sampled softmax", 2 * host_bytes<float>(tokens * config.channels));
    }
    if (options.profile) plan.rows.emplace_back("--profile's copies", CopyPeak::bytes);
    // The parameters are read in fp32, and converted one matrix at a time.
    if (const WeightType type = weight_type(options); type != WeightType::fp32) {
        int64_t largest = 0;
        for (const Parameter& p : ParameterTable(config, type).rows)
            if (p.matmul_weight) largest = std::max(largest, p.stride);
        plan.rows.emplace_back("converted matrix", largest * 4);
    }
    plan.check(available_memory() / ranks.on_this_host(), remedy);
    // The program itself and its tokenizer are listed after the check: this memory is already in use.
    plan.rows.emplace_back("program", platform::process_memory().resident);
    return plan.text();
}

std::unique_ptr<Model> make_model(const Options& options, const GPT2Config& config, int64_t B, int64_t T,
                                  ActivationPolicy policy, Ranks& ranks) {
    Cpu cpu(matmul_kind(options));
    cpu.weights = weight_type(options);
    cpu.reserve(scratch(options, config, B, T, policy));
    return std::make_unique<GPT2<Cpu>>(std::move(cpu), config, B, T, policy, cache_size(options, config),
                                       sharing(options, ranks));
}

std::string find_nonfinite(Model& model, const int32_t* x, const int32_t* y, int64_t B, int64_t T, double scale) {
    return first_nonfinite(dynamic_cast<GPT2<Cpu>&>(model), x, y, B, T, scale);
}

double measured_peak_flops(const Options& options) { return measure_peak(matmul_kind(options), quick); }

double peak_flops(const Options& options) { return measured_peak_flops(options); }

double peak_bytes() { return measure_copy_bandwidth(); }

bool has_bf16_matmuls() { return gemm::has_bf16; }

bool on_gpu() { return false; }

std::string device_features() {
    const bool amx = gemm::chosen(MatmulKind::fp32, 1024, 1024) == MatmulKind::split;
    return "CPU; matmuls in fp32 (" + std::string(amx ? "AMX" : "FMA") + ")" +
           (has_bf16_matmuls() ? " and bf16" : ", bf16 not built in");
}

std::string device_name(const Options& options) { return threads_text(options.threads); }

// The interface of device_model.h for an NVIDIA GPU: train_gpt2cu is linked with this file.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "layers/layers.cuh"
#include "device/cuda/peak.cuh"

#include "program/device_model.h"
#include "gpt2.h"
#include "gpt2_nonfinite.h"
#include "io/file/error.h"
#include "program/launch.h"
#include "program/launcher.h"
#include "program/memory_plan.h"

namespace {

#ifdef __CUDACC__
constexpr int64_t peak_size = 4096;  // of the square matrices in the matmul that is timed
#else
constexpr int64_t peak_size = 64;  // the emulator is slow
#endif

// What distinguishes the GPUs of a machine. Each process has emulated GPUs of its own.
using GpuPlace = std::array<int, 3>;
GpuPlace current_gpu() {
#ifdef __CUDACC__
    return {device_attribute(cudaDevAttrPciDomainId), device_attribute(cudaDevAttrPciBusId),
            device_attribute(cudaDevAttrPciDeviceId)};
#else
    return {getpid(), 0, 0};
#endif
}

// Makes GPU number `index` the current device, for one process. For one of several ranks on a machine it is the rank's
// number there, unless --device is given; a launcher may show each rank only its own GPU, as number 0.
void use_device(const Options& options, const Ranks& ranks) {
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);  // by default CUDA numbers GPUs in another order than nvidia-smi
    const std::string remedy =
        "check nvidia-smi; ./train_gpt2 (make train_gpt2) trains on the CPU, with the same options";
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        throw InputError("--device: no usable NVIDIA GPU" +
                         (error == cudaSuccess ? "" : " (" + std::string(cudaGetErrorString(error)) + ")") + "; " +
                         remedy);
    const int64_t index = options.given("device") ? options.device : ranks.before_on_this_host() % count;
    if (index >= count)
        throw InputError("--device: there is no GPU " + std::to_string(index) + ", only 0 … " +
                         std::to_string(count - 1) + "; " + remedy);
    if (const cudaError_t e = cudaSetDevice(static_cast<int>(index)); e != cudaSuccess)
        throw InputError("--device: GPU " + std::to_string(index) + " cannot be used: " + cudaGetErrorString(e) + "; " +
                         remedy);
    const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
    if (major < 8)
        throw InputError("--device: GPU " + std::to_string(index) + " has compute capability " + std::to_string(major) +
                         ".x, but 8.0 or newer is needed (A100, RTX 30); " + remedy);
}

std::string chip() {
    int device = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    return properties.name;
}

int64_t free_memory() {
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
}

// NCCL refuses two ranks on one GPU, which would wait for each other. NCCL_HOSTID makes it take ranks for ones on
// different machines, so that several can be tried on one GPU.
void refuse_shared_gpus(const Ranks& ranks, const std::vector<GpuPlace>& gpus) {
    if (std::getenv("NCCL_HOSTID")) return;
    const auto mine = static_cast<size_t>(ranks.rank());
    for (size_t r = 0; r < mine; ++r)
        if (gpus[r] == gpus[mine] && ranks.hosts()[r] == ranks.hosts()[mine])
            throw InputError(Launcher().name() + ": " + std::to_string(ranks.on_this_host()) + " processes on " +
                             ranks.hosts()[mine] +
                             ", of which two have the same GPU; start one for each GPU, without "
                             "--device");
}

// Host memory that a model takes while it is read or saved, in bytes. Throws InputError if there is less.
int64_t check_host_memory(const GPT2Config& config, ActivationPolicy policy, const Sharing& sharing) {
    const ParameterTable table(config);
    const int64_t moments = policy == ActivationPolicy::inference ? 0 : 2 * own_slice(table, sharing).size();
    const int64_t bytes = (table.size + moments) * 4, available = available_memory() / sharing.ranks->on_this_host();
    if (bytes > available)
        throw InputError("host memory: " + mebibytes(available) + " available, " + mebibytes(bytes) +
                         " needed to read and save the model; make the model smaller");
    return bytes;
}

Cuda device_for(const Options& options, ActivationPolicy policy) {
    Cuda dev = cuda_for_training();
    dev.bf16_matmuls = options.dtype == "bf16";
    dev.tf32 = options.matmul == "tf32";
    // With recomputation the GELU stays a kernel of its own, so that recomputing it gives the same bits.
    dev.fuse_gelu =
        fused_gelu_pays() && policy != ActivationPolicy::recompute_ln && policy != ActivationPolicy::recompute_gelu;
    return dev;
}

// Calls f with a value of the type in which parameters and activations are stored.
template <class F>
auto for_dtype(const Options& options, const F& f) {
    return options.dtype == "fp32" ? f(float{}) : f(bf16{});
}

}  // namespace

bool has_bf16_matmuls() { return false; }  // --dtype bf16 is the default

bool on_gpu() { return true; }

void connect_devices(const Options& options, Ranks& ranks) {
    if (ranks.count() == 1) return;
    std::optional<NcclLibrary> library;
    GpuPlace gpu{};
    on_all(ranks, [&] {
        use_device(options, ranks);
        gpu = current_gpu();
        try {
            library.emplace();
        } catch (const std::runtime_error& error) {
            throw InputError(Launcher().name() + ": several processes need NCCL (" + error.what() +
                             "); install libnccl2 and libnccl-dev and rebuild with make, or start one process");
        }
    });
    const std::vector<GpuPlace> gpus = all_gather(ranks, gpu);
    on_all(ranks, [&] { refuse_shared_gpus(ranks, gpus); });
    ranks.nccl = std::make_shared<Nccl>(*library, ranks);
    // NCCL allocates its buffers for the first messages: now, before plan_memory looks at what is free.
    Cuda dev;
    std::vector<int64_t> cuts(static_cast<size_t>(ranks.count()) + 1);
    std::iota(cuts.begin(), cuts.end(), 0);
    const auto one_each = allocate<float>(dev, ranks.count());
    all_gather_on(dev, ranks, one_each.get(), cuts);
    to_host(dev, one_each.get(), ranks.count());
}

std::string plan_memory(const Options& options, const GPT2Config& config, int64_t B, int64_t T, ActivationPolicy policy,
                        const std::string& remedy, Ranks& ranks) {
    if (config.head_size() > attention_plain::most_channels)
        throw InputError("attention: the head size " + std::to_string(config.head_size()) +
                         " (channels / heads) is above the GPU kernels' limit of " +
                         std::to_string(attention_plain::most_channels) + "; choose more heads");
    use_device(options, ranks);
    return for_dtype(options, [&]<class Scalar>(Scalar) {
        const MemoryPlan plan(config, B, T, policy, cache_size(options, config),
                              {.scalar = sizeof(Scalar), .wide = 4, .sharing = sharing(options, ranks)}, [&] {
                                  const Cuda dev;
                                  return 4 * classifier_scratch<Scalar>(dev, B * T, config.vocab) +
                                         (int64_t{32} << 20);  // and cuBLASLt's
                              });
        plan.check(free_memory(), remedy);
        return plan.text() + "; host memory to read and save it: " +
               mebibytes(check_host_memory(config, policy, sharing(options, ranks)));
    });
}

std::unique_ptr<Model> make_model(const Options& options, const GPT2Config& config, int64_t B, int64_t T,
                                  ActivationPolicy policy, Ranks& ranks) {
    return for_dtype(options, [&]<class Scalar>(Scalar) -> std::unique_ptr<Model> {
        return std::make_unique<GPT2<Cuda, Scalar>>(device_for(options, policy), config, B, T, policy,
                                                    cache_size(options, config), sharing(options, ranks));
    });
}

std::string find_nonfinite(Model& model, const int32_t* x, const int32_t* y, int64_t B, int64_t T, double scale) {
    if (auto* const in_fp32 = dynamic_cast<GPT2<Cuda, float>*>(&model))
        return first_nonfinite(*in_fp32, x, y, B, T, scale);
    return first_nonfinite(dynamic_cast<GPT2<Cuda, bf16>&>(model), x, y, B, T, scale);
}

double measured_peak_flops(const Options& options) {
    Cuda dev = device_for(options, ActivationPolicy::training);
    return for_dtype(options, [&]<class Scalar>(Scalar) {
        int64_t size = peak_size;
        while (size > 64 && size * size * 12 * static_cast<int64_t>(sizeof(Scalar)) > free_memory()) size /= 2;
        return measured_flops<Scalar>(dev, size);
    });
}

// The data sheet's figure where the chip is known: model FLOPs utilization is measured against it.
double peak_flops(const Options& options) {
    const double known = options.dtype == "fp32" ? 0 : data_sheet_flops(chip());
    return known > 0 ? known : measured_peak_flops(options);
}

double peak_bytes() {
    Cuda dev;
    return measured_copy(dev, std::min(16 * peak_size * peak_size, free_memory() / 4));  // the model is in memory too
}

std::string device_features() {
#ifdef __CUDACC__
    const std::string cuda =
        "CUDA " + std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
#else
    const std::string cuda = "CUDA emulated on the CPU";
#endif
    return "NVIDIA GPU; " + cuda + "; parameters in fp32 and bf16";
}

std::string device_name(const Options&) { return chip(); }

// The interface of device_model.h for an NVIDIA GPU: train_gpt2cu is linked with this file.
#include <cstdlib>

#include "layers/layers.cuh"
#include "device/cuda/peak.cuh"

#include "program/device_model.h"
#include "gpt2.h"
#include "gpt2_nonfinite.h"
#include "io/file/error.h"
#include "program/memory_plan.h"

namespace {

#ifdef __CUDACC__
constexpr int64_t peak_size = 4096;  // of the square matrices in the matmul that is timed
#else
constexpr int64_t peak_size = 64;  // the emulator is slow
#endif

// Makes GPU number `index` the current device.
void use_device(int64_t index) {
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);  // by default CUDA numbers GPUs in another order than nvidia-smi
    const std::string remedy =
        "check nvidia-smi; ./train_gpt2 (make train_gpt2) trains on the CPU, with the same options";
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        throw InputError("--device: no usable NVIDIA GPU" +
                         (error == cudaSuccess ? "" : " (" + std::string(cudaGetErrorString(error)) + ")") + "; " +
                         remedy);
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

// Host memory that a model takes while it is read or saved, in bytes. Throws InputError if there is less.
int64_t check_host_memory(const GPT2Config& config, ActivationPolicy policy) {
    const int64_t copies = policy == ActivationPolicy::inference ? 1 : 3;  // parameters, AdamW's moments
    const int64_t bytes = copies * ParameterTable(config).size * 4, available = available_memory();
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

bool on_gpu() { return true; }

std::string plan_memory(const Options& options, const GPT2Config& config, int64_t B, int64_t T, ActivationPolicy policy,
                        const std::string& remedy, Ranks& ranks) {
    if (config.head_size() > attention_plain::most_channels)
        throw InputError("attention: the head size " + std::to_string(config.head_size()) +
                         " (channels / heads) is above the GPU kernels' limit of " +
                         std::to_string(attention_plain::most_channels) + "; choose more heads");
    use_device(options.device);
    return for_dtype(options, [&]<class Scalar>(Scalar) {
        const MemoryPlan plan(config, B, T, policy, cache_size(options, config),
                              {.scalar = sizeof(Scalar), .wide = 4, .sharing = sharing(options, ranks)}, [&] {
                                  const Cuda dev;
                                  return 4 * classifier_scratch<Scalar>(dev, B * T, config.vocab) +
                                         (int64_t{32} << 20);  // and cuBLASLt's
                              });
        plan.check(free_memory(), remedy);
        return plan.text() + "; host memory to read and save it: " + mebibytes(check_host_memory(config, policy));
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

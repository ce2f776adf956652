// Settings of one optimizer step on the Cuda device, in device memory: a recorded graph launches its kernels with the
// same arguments each time, and these point to values that are new for each step.
#pragma once

#include "layers/adamw.cuh"
#include "layers/muon.cuh"
#include "device/cuda/rounding.cuh"
#include "device/cuda/step.cuh"
#include "layers/step_settings.h"

struct CudaSettings {
    AdamWFactors with_decay, without_decay;
    MuonFactors muon;
    StepLimits limits;
    Rounding rounding;
};

struct SettingsFeed {
    PinnedBuffer<CudaSettings> host{1};
    CudaBuffer<CudaSettings> device = cuda_allocate<CudaSettings>(1);
    CudaEvent read;  // the host's
};

// Into device memory.
struct CudaLayerSettings {
    const StepLimits* limits;
    const MuonFactors* muon;
    const Rounding* rounding;
    const AdamWFactors *with_decay, *without_decay;
    const AdamWFactors* adamw(bool decay) const { return decay ? with_decay : without_decay; }
};

// Always the same addresses. The copy waits on the stream for the update before, which reads what it overwrites.
inline CudaLayerSettings settings_for(Cuda& dev, const StepSettings& s) {
    std::shared_ptr<SettingsFeed>& feed = dev.step->settings;
    if (!feed) feed = std::make_shared<SettingsFeed>();
    cuda_check(cudaEventSynchronize(feed->read.event), "cudaEventSynchronize");  // of the step before: long done
    AdamW without_decay = s.optimizer.adamw;
    without_decay.weight_decay = 0;
    *feed->host.data = {adamw_factors(s.optimizer.adamw, s.step), adamw_factors(without_decay, s.step),
                        muon_factors(s.optimizer.muon.value_or(Muon{})), s.limits, s.rounding.value_or(Rounding{})};
    CudaSettings* const settings = feed->device.get();
    cuda_check(cudaMemcpyAsync(settings, feed->host.data, sizeof *settings, cudaMemcpyHostToDevice, dev.stream),
               "cudaMemcpyAsync");
    cuda_check(cudaEventRecord(feed->read.event, dev.stream), "cudaEventRecord");
    return {&settings->limits, &settings->muon, &settings->rounding, &settings->with_decay, &settings->without_decay};
}

// The properties of the emulated GPUs.
#include <unistd.h>

#include <iterator>

#include "dev/emulator/cuda_on_cpu.h"
#include "dev/emulator/memory.h"

struct Device {
    int major, minor, multiprocessors;
};
constexpr Device devices[] = {{8, 0, 2}, {9, 0, 3}};
static thread_local int current = 0;

static bool exists(int device) { return device >= 0 && device < static_cast<int>(std::size(devices)); }

cudaError_t cudaGetDeviceCount(int* count) { return *count = static_cast<int>(std::size(devices)), cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = current, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    if (!exists(device)) return cudaErrorInvalidDevice;
    current = device;
    return cudaSuccess;
}

static size_t memory_size() {
    return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = memory_size();
    const size_t used = emulator::device_memory_in_use();
    *free = *total > used ? *total - used : 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (!exists(device)) return cudaErrorInvalidDevice;
    const auto& [major, minor, multiprocessors] = devices[device];
    *properties = {"emulated", memory_size(), major, minor, multiprocessors};
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (!exists(device)) return cudaErrorInvalidDevice;
    const auto& [major, minor, multiprocessors] = devices[device];
    *value = attribute == cudaDevAttrMultiProcessorCount ? multiprocessors : major;
    return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t e) {
    switch (e) {
        case cudaSuccess:
            return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorInvalidDevice:
            return "invalid device ordinal";
        case cudaErrorInvalidResourceHandle:
            return "invalid resource handle";
        case cudaErrorIllegalState:
            return "the operation cannot be performed in the present state";
        case cudaErrorNotReady:
            return "device not ready";
        case cudaErrorNotSupported:
            return "operation not supported";
        case cudaErrorStreamCaptureUnsupported:
            return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated:
            return "operation failed due to a previous error during capture";
        case cudaErrorStreamCaptureIsolation:
            return "dependency created on uncaptured work in another stream";
        case cudaErrorStreamCaptureImplicit:
            return "operation would make the legacy stream depend on a capturing blocking stream";
        case cudaErrorCapturedEvent:
            return "operation not permitted on an event last recorded in a capturing stream";
    }
    return "unrecognized error code";
}

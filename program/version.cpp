#include "program/version.h"

#include <omp.h>

#include "layers/openmp_spin.h"
#include "layers/simd.h"
#include "program/device_model.h"

namespace {

#ifndef VERSION  // by the Makefile
#define VERSION ""
#endif

std::string compiler() {
#if defined(__clang__)
    return "clang++ " __clang_version__;
#else
    return "g++ " __VERSION__;
#endif
}

std::string instructions() {
#if defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__ARM_NEON)
    return "NEON";
#elif defined(__SSE2__)
    return "SSE2";
#else
    return "this CPU";
#endif
}

}  // namespace

std::string version_text() {
    const std::string version = VERSION;
    std::string text = program_name() + " " + (version.empty() ? "(no git repository)" : version) + "\n";
    text +=
        "built by " + compiler() + " for " + instructions() + ", vectors of " + std::to_string(simd::W) + " floats\n";
    text += "device: " + device_features() + "\n";
    text += std::to_string(omp_get_max_threads()) + " threads";
    if (const auto count = spin_count()) text += ", which spin " + std::to_string(count) + " times before they sleep";
    return text + "\n";
}

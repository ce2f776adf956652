#include "program/version.h"

#include "device/cpu/openmp_spin.h"
#include "device/platform.h"
#include "device/cpu/simd.h"
#include "program/device_model.h"
#include "program/launch.h"
#include "program/threads.h"

namespace {

#ifndef VERSION  // set by the Makefile
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

std::string build_text() {
    const std::string version = VERSION, cpu = platform::cpu_name();
    return program_name() + " " + (version.empty() ? "(no git repository)" : version) + ", built by " + compiler() +
           " for " + instructions() + ", " + device_features() + (cpu.empty() ? "" : " of " + cpu);
}

std::string version_text() {
    const std::string version = VERSION;
    std::string text = program_name() + " " + (version.empty() ? "(no git repository)" : version) + "\n";
    text +=
        "built by " + compiler() + " for " + instructions() + ", vectors of " + std::to_string(simd::W) + " floats\n";
    text += "device: " + device_features() + "\n";
    text += std::string("MPI: ") + (has_mpi() ? "by train_gpt2_mpi.so" : "not built in") + "\n";
    choose_threads(0);
    text += threads_text(0);
    if (const auto count = spin_count())
        text += "; at a barrier each spins " + std::to_string(count) + " times before it sleeps";
    return text + "\n";
}

// The entry point for libFuzzer: TARGET=safetensors build/fuzz/readers … fuzzes one target. SEEDS=DIR writes its seeds
// there first.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "dev/fuzz/targets.h"

template class nlohmann::basic_json<>;  // common.h has declared it for all readers

namespace {

const FuzzTarget* chosen = nullptr;

const FuzzTarget* find_target(const std::string& name) {
    for (const FuzzTarget* target : fuzz_targets())
        if (target->name == name) return target;
    std::fprintf(stderr, "TARGET=%s: expected one of", name.c_str());
    for (const FuzzTarget* target : fuzz_targets()) std::fprintf(stderr, " %s", target->name);
    std::fprintf(stderr, "\n");
    std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    const char *name = std::getenv("TARGET"), *seeds = std::getenv("SEEDS");
    chosen = find_target(name ? name : "");
    if (!seeds) return 0;
    int number = 0;
    for (const std::string& seed : chosen->seeds())
        std::ofstream(seeds + std::string("/seed_") + std::to_string(number++), std::ios::binary) << seed;
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    run_target(*chosen, {reinterpret_cast<const char*>(data), size});
    return 0;
}

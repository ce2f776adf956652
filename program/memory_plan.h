// The memory that a model will take, compared before the first step with what is available.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <omp.h>

#include "program/control_group.h"
#include "gpt2_slices.h"
#include "gpt2_tensors.h"
#include "layers/global_norm.h"
#include "io/file/error.h"
#include "device/platform.h"

inline std::string mebibytes(int64_t bytes) {
    char text[32];
    const double mib = static_cast<double>(bytes) / (1 << 20);
    std::snprintf(text, sizeof text, mib < 1024 ? "%.0f MiB" : "%.2f GiB", mib < 1024 ? mib : mib / 1024);
    return text;
}

// Bytes that this process can still allocate: what the machine, its control group and its own limits leave.
inline int64_t available_memory() {
    int64_t available = platform::free_memory();
    if (platform::linux_only) available = std::min(available, control_group_memory());
    // A limit on address space (ulimit -v) also covers each thread's stack and heap, and mapped files: a third is left
    // for them.
    rlimit space{};
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
        constexpr int64_t thread = int64_t{72} << 20;
        const int64_t taken = platform::process_memory().address_space + omp_get_max_threads() * thread;
        available = std::min(available, (static_cast<int64_t>(space.rlim_cur) - taken) / 3 * 2);
    }
    return std::max<int64_t>(available, 0);
}

struct MemoryPlan {
    std::vector<std::pair<std::string, int64_t>> rows;  // what, bytes

    // Bytes per element of parameters and activations (scalar), and of everything that stays fp32 (wide). Muon needs
    // none or few second moments for the matrices that it updates, a sampled softmax no momentum of token embeddings. A
    // step of several shards needs a buffer per level of their tree. Of several ranks, each has the moments and
    // originals of its slice, and buffers for parts of the others' gradients and for the norm of all.
    struct Sizes {
        int64_t scalar = 4, wide = 4;
        int64_t second_moments_of_a_matrix = std::numeric_limits<int64_t>::max();  // at most so many
        bool momentum_of_embedding = true;
        Sharing sharing = {};
    };
    // scratch() returns the bytes of scratch memory that the device needs.
    template <class Scratch>
    MemoryPlan(const GPT2Config& config, int64_t B, int64_t T, ActivationPolicy policy, CacheSize cache, Sizes sizes,
               const Scratch& scratch) {
        // A rough count, because an exact one of more memory than any machine has might overflow an int64.
        const double rough = 64.0 * static_cast<double>(B) * static_cast<double>(T) *
                             static_cast<double>(config.channels) * static_cast<double>(config.layers);
        if (rough > 0x1p58) {
            rows.emplace_back("activations, roughly", static_cast<int64_t>(std::min(rough, 0x1p62)));
            return;
        }
        const ParameterTable table(config);
        const int64_t parameters = table.size;
        rows.emplace_back("parameters", parameters * sizes.scalar);
        const int64_t shards = sizes.sharing.shards, ranks = sizes.sharing.ranks->count();
        const Slice mine = own_slice(table, sizes.sharing);
        if (sizes.scalar != sizes.wide) rows.emplace_back("their fp32 originals", mine.size() * sizes.wide);
        if (policy != ActivationPolicy::inference) {
            rows.emplace_back("gradients", parameters * sizes.wide * (1 + tree_levels(shards)));
            int64_t moments = 2 * mine.size();
            for (const Parameter& p : table.rows) {
                const int64_t held = Slice{p.offset, p.offset + p.copies * p.stride}.in(mine).size();
                const int64_t spared = std::max<int64_t>(0, p.stride - sizes.second_moments_of_a_matrix);
                if (p.muon()) moments -= held / p.stride * spared;
                if (p.offset == table.wte.offset && !sizes.momentum_of_embedding) moments -= held;
            }
            rows.emplace_back("optimizer state", moments * sizes.wide);
            if (ranks > 1)
                rows.emplace_back("exchange",
                                  slice_sum::received_floats(ranks) * sizes.wide + global_norm::runs(parameters) * 8);
        }
        const ActivationTable activations(config, B, T, policy, sizes.wide / sizes.scalar, cache);
        rows.emplace_back("activations", activations.size * sizes.scalar);
        rows.emplace_back("scratch", scratch());
    }

    int64_t total() const {
        int64_t bytes = 0;
        for (const auto& row : rows) bytes += row.second;
        return bytes;
    }
    std::string text() const {
        std::string line;
        for (const auto& [what, bytes] : rows) line += what + " " + mebibytes(bytes) + ", ";
        return line + "total " + mebibytes(total());
    }
    // Throws InputError if it is more than is available.
    void check(int64_t available, const std::string& remedy) const {
        if (total() > available)
            throw InputError("memory: " + mebibytes(available) + " available, " + mebibytes(total()) + " needed (" +
                             text() + "); " + remedy);
    }
};

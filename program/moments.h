// Saving the optimizer's moments, of which each rank has a slice: rank 0 writes the files and fetches the others'
// values piece by piece, so that it needs no memory for all of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gpt2_model.h"
#include "device/parallel/slices.h"
#include "io/model/checkpoint.h"

class Moments {
public:
    Moments(Ranks& ranks, const std::vector<Slice>& slices, const Model::HostState& host)
        : ranks_(ranks), slices_(slices), mine_{host.m, host.v} {}

    // For reading: this rank's slice of each buffer.
    std::vector<OptimizerBuffer> slice() const { return buffers(); }

    // Rank 0 calls save(buffers) while the others send what it fetches. Returns whether it has saved, on every rank; if
    // save() throws, rank 0 throws that.
    bool save(const std::function<void(const std::vector<OptimizerBuffer>&)>& save) const {
        if (!ranks_.first()) return serve();
        std::vector<OptimizerBuffer> all = buffers();
        if (ranks_.count() > 1)
            for (int64_t which = 0; which < std::ssize(all); ++which)
                all[static_cast<size_t>(which)].read = [this, which](int64_t begin, int64_t end, float* out) {
                    for (int64_t r = 0; r < ranks_.count(); ++r) fetch(r, which, {begin, end}, out);
                };
        try {
            save(all);
        } catch (...) {
            end(Request::failed);
            throw;
        }
        end(Request::saved);
        return true;
    }

private:
    struct Request {
        static constexpr int64_t failed = -2, saved = -1;
        int64_t which;  // 0: m, 1: v; or how the save ended
        Slice part;
    };

    std::vector<OptimizerBuffer> buffers() const {
        const auto [begin, end] = slices_[static_cast<size_t>(ranks_.rank())];
        return {{"adam_m", mine_[0], slices_.back().end, begin, end},
                {"adam_v", mine_[1], slices_.back().end, begin, end}};
    }
    float* at(int64_t which, int64_t begin) const {
        return mine_[static_cast<size_t>(which)] + (begin - slices_[static_cast<size_t>(ranks_.rank())].begin);
    }
    void send(int64_t to, Request request) const {
        ranks_.exchange(std::array{Message{to, &request, sizeof request}}, {});
    }
    void end(int64_t how) const {
        for (int64_t r = 1; r < ranks_.count(); ++r) send(r, {how, {}});
    }
    // What rank r has of the part, to its place in out.
    void fetch(int64_t r, int64_t which, Slice part, float* out) const {
        const Slice theirs = part.in(slices_[static_cast<size_t>(r)]);
        float* const place = out + (theirs.begin - part.begin);
        if (theirs.size() == 0) return;
        if (r == 0) {
            std::copy_n(at(which, theirs.begin), theirs.size(), place);
            return;
        }
        send(r, {which, theirs});
        ranks_.exchange({}, std::array{Message{r, place, theirs.size() * int64_t{sizeof(float)}}});
    }
    // Sends what rank 0 requests until it has saved, or failed to.
    bool serve() const {
        for (;;) {
            Request request{};
            ranks_.exchange({}, std::array{Message{0, &request, sizeof request}});
            if (request.which < 0) return request.which == Request::saved;
            const auto& [which, part] = request;
            ranks_.exchange(std::array{Message{0, at(which, part.begin), part.size() * int64_t{sizeof(float)}}}, {});
        }
    }

    Ranks& ranks_;
    const std::vector<Slice>& slices_;
    std::array<float*, 2> mine_;  // m, v
};

// The loss over a stream of tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpt2_model.h"
#include "io/data/batch_sampler.h"
#include "device/parallel/ranks.h"
#include "io/file/error.h"
#include "io/text/tokenizer.h"

struct Evaluation {
    double nats = 0;  // the sum of the losses
    int64_t predictions = 0;
    double loss() const { return nats / static_cast<double>(predictions); }
};

// The bytes of text that tokens stand for. End-of-text stands for none, and so do ids that are not text.
inline int64_t bytes_of(std::span<const int32_t> tokens, const Tokenizer& tokenizer) {
    int64_t bytes = 0;
    for (const int32_t id : tokens)
        if (id < tokenizer.vocab() && id != tokenizer.end_of_text()) bytes += std::ssize(tokenizer.token(id));
    return bytes;
}

// Evaluates the given windows in batches of `batch` windows of equal length. `between` is called before each batch with
// the sums so far and the targets that the batch scores; if it returns false, the evaluation ends without a result.
// Ranks share the batches; their sums are added in order, and each rank gets the result. Throws CheckFailed if the loss
// is NaN or infinite.
inline std::optional<Evaluation> evaluate_windows(
    Model& model, const WindowReader& reader, const std::vector<int64_t>& windows, int64_t batch, int64_t seq,
    const std::function<bool(const Evaluation&, std::span<const int32_t>)>& between, Ranks& ranks = alone()) {
    std::vector<std::span<const int64_t>> batches;
    for (size_t i = 0, rows = 0; i < windows.size(); i += rows) {
        const auto has_room = [&] { return static_cast<int64_t>(rows) < batch && i + rows < windows.size(); };
        for (rows = 0; has_room() && reader.length(windows[i + rows]) == reader.length(windows[i]);) ++rows;
        batches.push_back(std::span(windows).subspan(i, rows));
    }
    // This rank evaluates every count()-th batch; a loss that it did not get to is NaN.
    const auto turns = static_cast<size_t>((std::ssize(batches) + ranks.count() - 1) / ranks.count());
    std::vector<double> sums(turns, std::numeric_limits<double>::quiet_NaN());
    std::vector<int32_t> x(static_cast<size_t>(batch * seq)), y(x.size()), scored;
    std::vector<float> losses(x.size());
    Evaluation so_far;
    bool go_on = true, finite = true;
    for (size_t turn = 0; go_on && finite && turn < turns; ++turn) {
        const size_t b = turn * static_cast<size_t>(ranks.count()) + static_cast<size_t>(ranks.rank());
        if (b >= batches.size()) break;
        const auto rows = std::ssize(batches[b]);
        const int64_t length = reader.length(batches[b][0]);
        // Calls use(first, count) for the predictions of each row that are scored.
        const auto each_row = [&](const auto& use) {
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t repeated = reader.repeated(batches[b][static_cast<size_t>(row)]);
                use(row * length + repeated, length - repeated);
            }
        };
        for (int64_t row = 0; row < rows; ++row)
            reader.read(batches[b][static_cast<size_t>(row)], x.data() + row * length, y.data() + row * length);
        scored.clear();
        each_row([&](int64_t first, int64_t n) { scored.insert(scored.end(), &y[first], &y[first] + n); });
        go_on = between(so_far, scored);
        if (!go_on) break;
        model.token_losses(losses.data(), x.data(), y.data(), rows, length);
        double sum = 0;
        each_row([&](int64_t first, int64_t n) { sum = std::accumulate(&losses[first], &losses[first] + n, sum); });
        sums[turn] = sum;
        finite = std::isfinite(sum);
        so_far.nats += sum;
        so_far.predictions += std::ssize(scored);
    }
    if (largest(ranks, go_on ? 0 : 1) > 0) return std::nullopt;
    const std::vector<double> all = all_gather(ranks, std::span<const double>(sums));
    Evaluation total;
    for (size_t b = 0; b < batches.size(); ++b) {
        const auto count = static_cast<size_t>(ranks.count());
        const double sum = all[b % count * turns + b / count];
        if (!std::isfinite(sum))
            throw CheckFailed("the loss of sequences " + std::to_string(batches[b].front() + 1) + " to " +
                              std::to_string(batches[b].back() + 1) + " of " + std::to_string(reader.windows()) +
                              " is NaN or infinite, although the weights are finite: the forward pass overflows; use "
                              "another checkpoint");
        total.nats += sum;
        for (const int64_t window : batches[b]) total.predictions += reader.length(window) - reader.repeated(window);
    }
    return total;
}

// The indices of `count` windows, spread evenly over `all`.
inline std::vector<int64_t> spread(int64_t all, int64_t count) {
    std::vector<int64_t> windows(static_cast<size_t>(std::min(all, count)));
    for (size_t i = 0; i < windows.size(); ++i)
        windows[i] = static_cast<int64_t>(i) * all / static_cast<int64_t>(windows.size());
    return windows;
}

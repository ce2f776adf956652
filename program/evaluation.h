// The loss over a stream of tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "gpt2_model.h"
#include "io/data/batch_sampler.h"
#include "io/file/error.h"

struct Evaluation {
    double nats = 0;  // the sum of the losses
    int64_t predictions = 0;
    double loss() const { return nats / static_cast<double>(predictions); }
};

// Evaluates the given windows in batches of `batch` windows of equal length. `between` is called before each batch with
// the sums so far and the targets that the batch scores. Throws CheckFailed if the loss is NaN or infinite.
inline Evaluation evaluate_windows(Model& model, const WindowReader& reader, const std::vector<int64_t>& windows,
                                   int64_t batch, int64_t seq,
                                   const std::function<void(const Evaluation&, std::span<const int32_t>)>& between) {
    std::vector<int32_t> x(static_cast<size_t>(batch * seq)), y(x.size()), scored;
    std::vector<float> losses(x.size());
    Evaluation total;
    for (size_t i = 0; i < windows.size();) {
        const int64_t length = reader.length(windows[i]);
        int64_t rows = 0;
        for (; rows < batch && i < windows.size() && reader.length(windows[i]) == length; ++rows, ++i)
            reader.read(windows[i], x.data() + rows * length, y.data() + rows * length);
        // Calls use(first, count) for the predictions of each row that are scored.
        const auto each_row = [&](const auto& use) {
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t repeated = reader.repeated(windows[i - rows + row]);
                use(row * length + repeated, length - repeated);
            }
        };
        scored.clear();
        each_row([&](int64_t first, int64_t n) { scored.insert(scored.end(), &y[first], &y[first] + n); });
        between(total, scored);
        model.token_losses(losses.data(), x.data(), y.data(), rows, length);
        double sum = 0;
        each_row([&](int64_t first, int64_t n) { sum = std::accumulate(&losses[first], &losses[first] + n, sum); });
        if (!std::isfinite(sum))
            throw CheckFailed("the loss of sequences " + std::to_string(windows[i - rows] + 1) + " to " +
                              std::to_string(windows[i - 1] + 1) + " of " + std::to_string(reader.windows()) +
                              " is NaN or infinite, although the weights are finite: the forward pass overflows; use "
                              "another checkpoint");
        total.nats += sum;
        total.predictions += std::ssize(scored);
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

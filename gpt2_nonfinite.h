// Where NaN or infinity first appears in a model, going through its tables in the order of computation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gpt2_tensors.h"
#include "device/device.h"

// Whether the first `count` values of x, on the device, are all finite.
template <class Device, class T>
bool all_finite(Device& dev, const T* x, int64_t count) {
    std::vector<float> piece(static_cast<size_t>(std::min<int64_t>(count, 1 << 20)));
    for (int64_t done = 0; done < count; done += std::ssize(piece)) {
        const int64_t n = std::min<int64_t>(count - done, std::ssize(piece));
        to_host(dev, piece.data(), x + done, n);
        if (!std::all_of(piece.begin(), piece.begin() + n, [](float v) { return std::isfinite(v); })) return false;
    }
    return true;
}

inline std::string of_layer(const Tensor& t, int64_t layer) {
    return t.copies > 1 ? t.name + " of layer " + std::to_string(layer) : t.name;
}

// Checks the parameters, then the activations of a forward pass on x, y (B,T), then the gradients of parameters in the
// order of the backward pass. Each block is recomputed before it is checked, as its activations may have been
// overwritten.
template <class GPT>
std::string first_nonfinite(GPT& model, const int32_t* x, const int32_t* y, int64_t B, int64_t T, double scale) {
    auto& dev = model.dev;
    const auto& acts = model.acts;
    const int64_t L = model.config.layers;
    for (const Parameter& p : model.table.rows)
        for (int64_t l = 0; l < p.copies; ++l)
            if (!all_finite(dev, model.parameters.get() + p.at(l), p.piece())) return "parameter " + of_layer(p, l);

    model.forward_backward(x, y, B, T, scale);
    // Only B x T tokens exist; the leading dimensions of the tensors are those of the largest batch.
    const auto bad = [&](const Tensor& t, int64_t layer) {
        const int64_t planned = acts.losses.piece(), count = t.piece() / planned * B * T;
        const auto* const at = model.activations.get() + t.at(layer);
        if (t.width == 1) return !all_finite(dev, at, count);
        return !all_finite(dev, reinterpret_cast<const typename GPT::wide*>(at), count);
    };
    if (bad(acts.residual1, 0)) return "the embedding (residual1 of layer 0)";
    for (int64_t l = 0; l < L; ++l) {
        model.block_forward(l, B, T, model.training_dropout());
        for (const Tensor* t : {&acts.ln1_mean, &acts.ln1_rstd, &acts.ln1, &acts.qkv, &acts.logsumexp, &acts.atty,
                                &acts.residual2, &acts.ln2_mean, &acts.ln2_rstd, &acts.ln2, &acts.fch, &acts.fch_gelu})
            if (bad(*t, l)) return of_layer(*t, l);
        if (bad(acts.residual1, l + 1)) return "the output of layer " + std::to_string(l);
    }
    for (const Tensor* t : {&acts.lnf_mean, &acts.lnf_rstd, &acts.lnf, &acts.losses})
        if (bad(*t, 0)) return t->name;

    const auto bad_gradient = [&](const Parameter& p, int64_t l) {
        return !all_finite(dev, model.gradients.get() + p.at(l), p.piece());
    };
    const auto& rows = model.table.rows;
    for (int64_t l = L; l >= -1; --l)  // the final norm, the blocks, the embeddings
        for (auto p = rows.rbegin(); p != rows.rend(); ++p) {
            const bool final_norm = p->name.starts_with("lnf"), embedding = !p->per_layer && !final_norm;
            const bool now = final_norm ? l == L : embedding ? l == -1 : 0 <= l && l < L;
            if (now && bad_gradient(*p, std::max<int64_t>(l, 0) % p->copies))
                return "the gradient of " + of_layer(*p, l);
        }
    return "";
}

// What the tests of checkpoints share: a small model, and a state to save with it.
#pragma once

#include <cmath>

#include "dev/test/io/model_files.h"
#include "io/model/checkpoint.h"

inline const GPT2Config small{.context = 8, .vocab = 128, .layers = 2, .heads = 2, .channels = 4};

class CheckpointFiles : public ModelFiles {
protected:
    std::string save(int64_t step, int64_t keep = 0, float scale = 1) {
        std::vector<float> values = random_parameters(small);
        for (float& v : values) v *= scale;
        state.step = step;
        return save_checkpoint(out, small, values.data(), FakeTokenizer(),
                               {{"adam_m", m.data(), 3}, {"adam_v", v_.data(), 4}}, state, keep);
    }
    const std::string out = at("out");
    TrainerState state{.step = 0,
                       .position = 7,
                       .seconds = 0.1 + 0.2,
                       .best_val_loss = 1.0 / 3,
                       .options = R"({"lr":0.001,"model":"tiny"})",
                       .data_order = 2,
                       .losses = {2.5, 1.25},
                       .norms = {1, 0.5}};
    std::vector<float> m = {1, 2, 3}, v_ = {4, 5, NAN, 7};
};

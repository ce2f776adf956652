// A model that computes nothing, for tests of what calls a model.
#pragma once

#include "gpt2_model.h"

struct Idle : Model {
    Idle() : Model(GPT2Config{.context = 4, .vocab = 8, .layers = 1, .heads = 1, .channels = 1}, {1, 4}) {}
    HostState download() override { return {}; }
    void upload(const HostState&) override {}
    HostState to_fill() override { return {}; }
    void forward_backward(const int32_t*, const int32_t*, int64_t, int64_t, double) override {}
    void end_shard(int64_t) override {}
    double loss() override { return 0; }
    void token_losses(float*, const int32_t*, const int32_t*, int64_t, int64_t) override {}
    void token_logits(float*, int64_t) override {}
    StepResult update(const UpdateParams&) override { return {}; }
    void sample_softmax(std::vector<double>, int64_t) override {}
    void set_profile(Profile*) override {}
    void append(float*, const int32_t*, int64_t, int64_t) override {}
    void branch(int64_t) override {}
};

// The experiment compares models that differ only in their norm. The gradient of each must be that of its loss.
#include "dev/norm_experiment/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace norm_experiment;

class EachNorm : public testing::TestWithParam<Norm> {};

// Along the gradient the loss changes by the gradient's squared length. The error of floats is some 1e-7 of a loss of
// 5.5, for a change of 0.01.
TEST_P(EachNorm, TheGradientIsThatOfTheLoss) {
    const Shape shape{.layers = 2, .channels = 12, .heads = 3, .seq = 7, .batch = 2, .vocab = 256};
    Model model(GetParam(), shape, 1);
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < shape.rows(); ++i) {
        tokens.push_back(static_cast<int32_t>(uniform(5, static_cast<uint64_t>(i)) * 256));
        targets.push_back(static_cast<int32_t>(uniform(6, static_cast<uint64_t>(i)) * 256));
    }
    for (size_t i = 0; i < model.parameters.size(); ++i)  // larger than at the start: every part of the model counts
        model.parameters[i] += static_cast<float>(0.3 * (uniform(7, i) - 0.5));
    model.forward_backward(tokens.data(), targets.data());
    const Buffer start = model.parameters, gradient = model.gradients;
    double square = 0;
    for (const float g : gradient) square += static_cast<double>(g) * static_cast<double>(g);
    const auto at = [&](double step) {
        for (size_t i = 0; i < start.size(); ++i)
            model.parameters[i] = start[i] + static_cast<float>(step) * gradient[i];
        return model.evaluate(tokens.data(), targets.data());
    };
    const double h = 0.005 / square;
    EXPECT_NEAR((at(h) - at(-h)) / (2 * h), square, 2e-3 * square);
}

TEST_P(EachNorm, TrainingLowersTheLoss) {
    const Shape shape{.layers = 2, .channels = 16, .heads = 2, .seq = 8, .batch = 2, .vocab = 256};
    Model model(GetParam(), shape, 1);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 16; ++i) tokens.push_back(i % 5);
    const double before = model.evaluate(tokens.data(), tokens.data());
    for (int64_t step = 1; step <= 30; ++step) {
        model.forward_backward(tokens.data(), tokens.data());
        model.update(1e-2, step);
    }
    EXPECT_LT(model.evaluate(tokens.data(), tokens.data()), before - 2);
}

INSTANTIATE_TEST_SUITE_P(Norms, EachNorm, testing::Values(Norm::pre, Norm::post, Norm::rms, Norm::none),
                         [](const auto& param) { return std::string(norm_names[static_cast<int>(param.param)]); });

// The losses after 300 steps, by norm, rate and seed.
using Losses = std::map<std::string, std::map<std::string, std::vector<double>>>;
Losses final_losses(const std::string& file) {
    std::ifstream csv("dev/norm_experiment/" + file);
    Losses final;
    std::string line;
    std::getline(csv, line);
    while (std::getline(csv, line)) {
        std::istringstream fields(line);
        std::string norm, rate, seed, step, loss;
        std::getline(fields, norm, ','), std::getline(fields, rate, ','), std::getline(fields, seed, ',');
        std::getline(fields, step, ','), std::getline(fields, loss);
        if (step == "300") final[norm][rate].push_back(std::stod(loss));
    }
    return final;
}

// dev/layernorm/README.md describes dev/norm_experiment/*.csv: its tables and its statements about differences.
TEST(NormExperiment, TheChapterSaysWhatWasMeasured) {
    Losses final = final_losses("results.csv");
    std::ostringstream chapter;
    chapter << std::ifstream("dev/layernorm/README.md").rdbuf();
    std::string words;  // line breaks are spaces
    for (const char c : chapter.str()) words += c == '\n' ? ' ' : c;
    const auto expect = [&](const char* format, const auto&... values) {
        char text[200];
        std::snprintf(text, sizeof text, format, values...);
        EXPECT_NE(words.find(text), std::string::npos) << "the chapter lacks: " << text;
    };

    double spread = 0;
    std::map<std::string, double> best;
    for (const auto& [norm, title] : std::map<std::string, std::string>{
             {"pre", "LayerNorm before"}, {"post", "LayerNorm after"}, {"rms", "RMSNorm before"}, {"none", "none"}}) {
        std::string row = "| " + title + " |";
        for (const char* rate : {"0.001", "0.003", "0.01", "0.03"}) {
            const std::vector<double>& losses = final[norm][rate];
            ASSERT_EQ(losses.size(), 3u) << norm << " " << rate;
            const double mean = (losses[0] + losses[1] + losses[2]) / 3;
            char text[16];
            std::snprintf(text, sizeof text, " %.3f |", mean);
            row += std::isnan(mean) ? " NaN |" : text;
            if (std::isnan(mean)) continue;
            const auto [least, most] = std::ranges::minmax(losses);
            spread = std::max(spread, most - least);
            if (!best.contains(norm) || mean < best[norm]) best[norm] = mean;
        }
        expect("%s", row.c_str());
    }
    for (const auto& [title, file] : std::map<std::string, std::string>{
             {"none", "results.csv"}, {"50 steps", "warmup_50.csv"}, {"200 steps", "warmup_200.csv"}}) {
        Losses warmed_up = final_losses(file);
        std::string row = "| " + title + " |";
        for (const char* rate : {"0.001", "0.003", "0.01", "0.03"}) {
            const std::vector<double>& losses = warmed_up["post"][rate];
            ASSERT_EQ(losses.size(), 3u) << file << " " << rate;
            char text[16];
            std::snprintf(text, sizeof text, " %.3f |", (losses[0] + losses[1] + losses[2]) / 3);
            row += text;
        }
        expect("%s", row.c_str());
    }
    expect("reaches %.3f without any.", best["pre"]);
    expect("a loss %.2f worse at its best rate than with LayerNorm before", best["none"] - best["pre"]);
    expect("seeds differ by up to %.2f,", spread);
}

}  // namespace

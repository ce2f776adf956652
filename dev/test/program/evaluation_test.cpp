// `eval` with overlapping windows.
#include <cmath>
#include <numbers>

#include "dev/test/program/program.h"
#include "gpt2.h"
#include "io/data/dataset.h"
#include "io/model/checkpoint.h"

namespace {

constexpr GPT2Config config{.context = 16, .vocab = 256, .layers = 2, .heads = 2, .channels = 16};

class Stride : public Program {
protected:
    Stride() {
        for (float& v : parameters) v *= 20;  // far from uniform, so that each loss depends on the tokens in view
        std::filesystem::create_directory(at("model"));
        write_model_directory(at("model"), config, parameters.data(), load_tokenizer("byte").get());
        std::copy(parameters.begin(), parameters.end(), reference.parameters.get());
    }
    // "loss … nats per token, …" of these windows; 0: without the option
    std::string eval(const std::string& data, int64_t seq, int64_t stride, const Args& more = {}) const {
        Args args = more;
        args.insert({{"from", at("model")}, {"data", data}, {"seq", std::to_string(seq)}});
        if (stride > 0) args["stride"] = std::to_string(stride);
        return expect_done(words("eval", args));
    }
    // The same by a loop over the predictions, in double: a window's loss without the last prediction is subtracted.
    double expected(const std::vector<int32_t>& ids, int64_t seq, int64_t stride) {
        double sum = 0;
        const int64_t predictions = std::ssize(ids) - 1;
        for (int64_t begin = 0, scored = 0; scored < predictions; begin += stride) {
            const int64_t end = std::min(begin + seq, predictions);
            for (int64_t t = scored; t < end; ++t) {
                sum += reference.evaluate(&ids[begin], &ids[begin + 1], 1, t + 1 - begin);
                if (t > begin) sum -= reference.evaluate(&ids[begin], &ids[begin + 1], 1, t - begin);
            }
            scored = end;
        }
        return sum / static_cast<double>(predictions);
    }
    std::vector<float> parameters = random_parameters(config);
    GPT2<Reference<double>> reference{{}, config, 1, config.context, ActivationPolicy::inference};
};

double loss_of(const std::string& printed) {
    double loss = 0;
    EXPECT_EQ(sscanf(printed.c_str(), "loss %lf nats per token", &loss), 1) << printed;
    return loss;
}

}  // namespace

TEST_F(Stride, OverlappingWindowsAreThePlainLoop) {
    const std::string letters = read_bytes(text).substr(0, 100);
    write_bytes(text, letters);
    const std::vector<int32_t> ids(letters.begin(), letters.end());
    for (const auto& [seq, stride] : std::vector<std::pair<int64_t, int64_t>>{{16, 1}, {16, 5}, {16, 15}, {7, 3}}) {
        SCOPED_TRACE(testing::Message() << seq << ", " << stride);
        const std::string printed = eval(text, seq, stride);
        EXPECT_NEAR(loss_of(printed), expected(ids, seq, stride), 2e-6);
        double nats = 0, perplexity = 0, bits = 0;
        ASSERT_EQ(
            sscanf(printed.c_str(), "loss %lf nats per token, perplexity %lf, %lf bits", &nats, &perplexity, &bits), 3);
        EXPECT_NEAR(bits, nats / std::numbers::ln2, 1e-5) << "each byte is counted once";
        EXPECT_NEAR(loss_of(eval(text, seq, stride, {{"batch", "1"}})), loss_of(printed), 2e-6);
    }
}

TEST_F(Stride, OfAWholeWindowIsNoStride) {
    EXPECT_EQ(eval(text, 16, 16), eval(text, 16, 0));
    EXPECT_EQ(eval(text, 7, 7), eval(text, 7, 0));
    EXPECT_NE(eval(text, 16, 8), eval(text, 16, 0));
}

TEST_F(Stride, IsAtMostTheWindow) {
    expect_refused({"eval", "--from", at("model"), "--data", text, "--stride", "17"}, {"--stride: 17", "16"});
    expect_refused({"eval", "--from", at("model"), "--data", text, "--seq", "5", "--stride", "6"},
                   {"--stride: 6", "5"});
}

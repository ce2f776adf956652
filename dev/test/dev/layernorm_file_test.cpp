// LayerNorm agrees with the committed numbers of PyTorch. A wrong number, and a file that cannot be used, are reported.
#include <gtest/gtest.h>

#include "dev/layernorm/check.h"
#include "dev/test/test_directory.h"

namespace {

const std::string committed = "dev/layernorm/state.safetensors";
using layernorm_check::File;

TEST(LayerNormFile, EveryCaseAgreesWithPyTorch) {
    const File file(committed);
    ASSERT_GE(file.cases(), 80);  // 40 shapes and options or more, in float64 and in float32
    layernorm_check::Check check;
    check.quiet = true;
    check.file(file);
    EXPECT_EQ(check.failed, 0);
    EXPECT_GE(check.passed, 1000);
}

// By default torch.var divides by N - 1, but LayerNorm's variance divides by N. The wrong one makes every result
// smaller by sqrt((N - 1) / N): by 11 % for rows of 5, and by 0.07 % for rows of 768, which is ten thousand rounding
// errors.
TEST(LayerNormFile, TheUnbiasedVarianceDisagrees) {
    const layernorm_check::Case c = File(committed).read(0);
    ASSERT_FALSE(c.has("weight") || c.has("bias"));
    const auto [N, C] = c.rows;
    ASSERT_EQ(C, 5);
    for (const int64_t divisor : {C, C - 1}) {
        double largest = 0, size = 0;
        for (int64_t row = 0; row < N; ++row) {
            const auto inp = c.inputs.at("x").begin() + row * C, out = c.results.at("out").begin() + row * C;
            double mean = 0, squares = 0;
            for (int64_t k = 0; k < C; ++k) mean += inp[k] / static_cast<double>(C);
            for (int64_t k = 0; k < C; ++k) squares += (inp[k] - mean) * (inp[k] - mean);
            const double r = 1 / std::sqrt(squares / static_cast<double>(divisor) + c.eps);
            for (int64_t k = 0; k < C; ++k) {
                largest = std::max(largest, std::abs((inp[k] - mean) * r - out[k]));
                size = std::max(size, std::abs(out[k]));
            }
        }
        if (divisor == C)
            EXPECT_LE(largest, 1e-14);
        else
            EXPECT_NEAR(largest / size, 1 - std::sqrt(0.8), 1e-4);
    }
}

// The committed file with changed tensors and metadata, given to the program.
class Changed : public TestDirectory {
protected:
    struct Tensor {
        DType dtype = DType::F64;
        std::vector<int64_t> shape;
        std::vector<double> values;
    };
    Changed() {
        const SafetensorsFile file(committed);
        for (const SafetensorsFile::Entry& entry : file.entries()) {
            Tensor& t = tensors[entry.name];
            t.shape = entry.shape;
            t.values.resize(static_cast<size_t>(entry.elements()));
            file.read(entry, t.values.data());
        }
        metadata = file.metadata();
    }
    int status() {
        std::vector<TensorToWrite> all;
        for (const auto& [name, t] : tensors) all.push_back({name, t.dtype, t.shape, t.values.data()});
        std::filesystem::remove(path());
        write_safetensors(path(), all, {metadata.begin(), metadata.end()});
        testing::internal::CaptureStdout();
        testing::internal::CaptureStderr();
        const int exit_status = layernorm_check::main({"--quiet", path()});
        output = testing::internal::GetCapturedStdout();
        message = testing::internal::GetCapturedStderr();
        return exit_status;
    }
    void expect_refused(const std::string& words) {
        EXPECT_EQ(status(), 2);
        EXPECT_NE(message.find(words), std::string::npos) << message;
        EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
    }
    std::string path() const { return at("changed.safetensors"); }

    std::map<std::string, Tensor> tensors;
    std::map<std::string, std::string> metadata;
    std::string output, message;
};

TEST_F(Changed, NothingIsFine) { EXPECT_EQ(status(), 0) << output << message; }

TEST_F(Changed, OneWrongNumberFails) {
    for (const char* name : {"0003.out", "0003.mean", "0003.rstd", "0003.dx", "0003.dweight", "0003.dbias"})
        for (const double change : {1e-4, double{NAN}}) {
            const Tensor before = tensors.at(name);
            tensors.at(name).values.back() += change;
            EXPECT_EQ(status(), 1) << name << " " << change;
            EXPECT_NE(output.find("NOT OK 0003"), std::string::npos) << output;
            tensors.at(name) = before;
        }
}

TEST_F(Changed, AMissingTensorIsRefused) {
    tensors.erase("0003.dout");
    expect_refused("tensor 0003.dout: found none");
}
TEST_F(Changed, ATensorOfAnotherSizeIsRefused) {
    tensors.at("0003.dweight").shape.assign(1, 4), tensors.at("0003.dweight").values.resize(4);
    expect_refused("tensor 0003.dweight: found 4 values, expected 5");
}
TEST_F(Changed, AShapeThatDoesNotFitIsRefusedWithBothShapes) {
    metadata.at("case.0003") = "layernorm float64 shape=2,3,5 normalized_shape=3,4 eps=1e-05 passes=1";
    expect_refused("normalized_shape (3,4): expected one or more of the last dimensions of the input's shape (2,3,5)");
}
TEST_F(Changed, AnUnknownNormIsRefused) {
    metadata.at("case.0003") = "batchnorm float64 shape=2,3,5 normalized_shape=5 eps=1e-05 passes=1";
    expect_refused("found 'batchnorm', expected layernorm or rmsnorm");
}
TEST_F(Changed, AMissingCaseIsRefused) {
    metadata.erase("case.0003");
    expect_refused("metadata \"case.0003\": found none");
}
TEST_F(Changed, AnotherFileIsRefused) {
    metadata.clear();
    expect_refused("metadata \"cases\": found none");
}

TEST(LayerNormFile, WhatIsNotThereIsRefused) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(layernorm_check::main({"no/such/file"}), 2);
    EXPECT_EQ(layernorm_check::main({}), 2);
    EXPECT_EQ(layernorm_check::main({"--loud", committed}), 2);
    EXPECT_EQ(layernorm_check::main({committed, committed}), 2);
    const std::string message = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 4) << message;
}

}  // namespace

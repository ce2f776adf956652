// The exercise with three planted faults: the faults are in dev/layernorm/faulty.h, each is found by the checks that
// the chapter's answer names, and without them all checks pass.
#include "dev/layernorm/backward_checks.h"

#include <sys/wait.h>

#include <cstdlib>

#include "dev/layernorm/faulty.h"
#include "dev/test/test_directory.h"

namespace fs = std::filesystem;

namespace {

using namespace backward_checks;

template <bool no_weight, bool input_for_norm, bool undivided>
void with_faults(double* dinp, double* dweight, double* dbias, const double* dout, const double* inp,
                 const double* weight, const double* mean, const double* rstd, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; ++row) {
        const double *x = inp + row * width, *dy = dout + row * width;
        double mean_dnorm = 0, mean_dnorm_norm = 0;
        for (int64_t c = 0; c < width; ++c) {
            const double norm = (x[c] - mean[row]) * rstd[row], dnorm = no_weight ? dy[c] : dy[c] * weight[c];
            mean_dnorm += dnorm;
            mean_dnorm_norm += dnorm * (input_for_norm ? x[c] : norm);
            dweight[c] += dy[c] * (x[c] - mean[row]) * rstd[row];
            dbias[c] += dy[c];
        }
        if (!undivided) mean_dnorm /= static_cast<double>(width), mean_dnorm_norm /= static_cast<double>(width);
        for (int64_t c = 0; c < width; ++c) {
            const double norm = (x[c] - mean[row]) * rstd[row];
            dinp[row * width + c] = rstd[row] * (dy[c] * weight[c] - mean_dnorm - norm * mean_dnorm_norm);
        }
    }
}

// Which of the five checks pass: dweight, dbias, dx, sum, orthogonality.
std::vector<bool> passed(Backward* backward) {
    std::vector<bool> ok;
    for (const Check& each : check(backward)) ok.push_back(each.ok());
    return ok;
}

using Verdicts = std::vector<bool>;

TEST(BackwardChecks, TheDefinitionPasses) {
    const auto definition = [](double* dinp, double* dweight, double* dbias, const double* dout, const double* inp,
                               const double* weight, const double* mean, const double* rstd, int64_t rows,
                               int64_t width) {
        Reference<double> dev;
        layernorm_backward(dev, dinp, dweight, dbias, dout, inp, weight, mean, rstd, nullptr, rows, width);
    };
    for (const Check& each : check(definition)) EXPECT_TRUE(each.ok()) << each.name << " " << each.error;
}

TEST(BackwardChecks, EachFaultIsFoundByTheChecksThatTheAnswerNames) {
    EXPECT_EQ(passed(with_faults<false, false, false>), (Verdicts{true, true, true, true, true}));
    EXPECT_EQ(passed(with_faults<true, false, false>), (Verdicts{true, true, false, false, false}));
    EXPECT_EQ(passed(with_faults<false, true, false>), (Verdicts{true, true, false, true, false}));
    EXPECT_EQ(passed(with_faults<false, false, true>), (Verdicts{true, true, false, false, false}));
    EXPECT_EQ(passed(with_faults<true, true, false>), (Verdicts{true, true, false, false, false}));
    EXPECT_EQ(passed(with_faults<true, false, true>), (Verdicts{true, true, false, false, false}));
    EXPECT_EQ(passed(with_faults<false, true, true>), (Verdicts{true, true, false, false, false}));
    EXPECT_EQ(passed(with_faults<true, true, true>), (Verdicts{true, true, false, false, false}));
}

// Without the weight, dx is the gradient for a weight of 1. That too is a projection.
TEST(BackwardChecks, ABackwardWithoutWeightIsFoundByFiniteDifferencesOnly) {
    const auto without_weight = [](double* dinp, double* dweight, double* dbias, const double* dout, const double* inp,
                                   const double*, const double* mean, const double* rstd, int64_t rows, int64_t width) {
        Reference<double> dev;
        layernorm_backward(dev, dinp, dweight, dbias, dout, inp, nullptr, mean, rstd, nullptr, rows, width);
    };
    EXPECT_EQ(passed(without_weight), (Verdicts{true, true, false, true, true}));
}

TEST(BackwardChecks, AFaultInAnotherGradientIsFoundToo) {
    const auto dweight_of_input = [](double* dinp, double* dweight, double* dbias, const double* dout,
                                     const double* inp, const double* weight, const double* mean, const double* rstd,
                                     int64_t rows, int64_t width) {
        with_faults<false, false, false>(dinp, dweight, dbias, dout, inp, weight, mean, rstd, rows, width);
        for (int64_t i = 0; i < rows * width; ++i) dweight[i % width] += 1e-6 * inp[i], dbias[i % width] += 1e-6;
    };
    EXPECT_EQ(passed(dweight_of_input), (Verdicts{false, false, true, true, true}));
}

TEST(BackwardChecks, ANaNIsNotOk) {
    const auto with_nans = [](double* dinp, double* dweight, double* dbias, const double* dout, const double* inp,
                              const double* weight, const double* mean, const double* rstd, int64_t rows,
                              int64_t width) {
        with_faults<false, false, false>(dinp, dweight, dbias, dout, inp, weight, mean, rstd, rows, width);
        dinp[3] = dweight[1] = dbias[2] = NAN;
    };
    EXPECT_EQ(passed(with_nans), (Verdicts{false, false, false, false, false}));
}

// faulty.h has these three faults and no other. Whoever has solved the exercise there sees this test fail.
TEST(BackwardChecks, TheExerciseHasAllThreeFaults) {
    const auto expected = check(with_faults<true, true, true>), found = check(faulty_backward);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(found[i].error, expected[i].error) << expected[i].name;
}

class TheExercise : public TestDirectory {};

TEST_F(TheExercise, PrintsWhatTheChapterShows) {
    const fs::path built = fs::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path();
    const int status = std::system(("'" + (built / "layernorm_faulty").string() + "' >'" + at("out") + "'").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1);
    std::string shown;  // indented, as it is in the chapter's list
    std::istringstream lines(read_bytes(at("out")));
    for (std::string line; std::getline(lines, line);) shown += "   " + line + "\n";
    EXPECT_NE(read_bytes("dev/layernorm/README.md").find(shown), std::string::npos) << shown;
}

}  // namespace

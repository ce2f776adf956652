// Compares dropout on Cuda with Reference: in the emulator, with several thread orders, or on a GPU.
#include "layers/dropout.cuh"

#include "dev/test/cuda/cuda_check.h"

namespace {

template <class T>
void expect_agreement(int64_t B, int64_t seq, int64_t C, bool with_residual, bool misaligned) {
    SCOPED_TRACE(testing::Message() << C << " channels, residual " << with_residual << ", " << misaligned);
    const BatchPlace place{.seed = 3, .step = 5, .first_sequence = 9};
    Cuda cuda;
    Reference<double> reference;
    const auto on_device = copied(cuda, place);
    const int64_t n = B * seq * C;
    CudaTensor<T> out(cuda, nans(n), misaligned), inp(cuda, uniform(n), misaligned),
        residual(cuda, uniform(n), misaligned);
    const auto run = [&](auto& dev, const BatchPlace* at) {
        const Dropout dropout = Dropout{at, Dropout::threshold_of(0.3)}.at(1, DropoutSite::mlp_projection);
        apply_dropout(dev, out.on(dev), inp.on(dev), with_residual ? residual.on(dev) : nullptr, dropout, B, seq, C);
    };
    run(cuda, on_device.get()), run(reference, &place);
    out.expect_close("out", [&](int64_t i) {  // rounding the scale, the product and the sum
        return roundoff *
               (4 * std::abs(inp.exact[static_cast<size_t>(i)]) + std::abs(out.exact[static_cast<size_t>(i)]));
    });
}

template <class T>
class CudaDropout : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(CudaDropout, StorageTypes);

TYPED_TEST(CudaDropout, AgreesWithReference) {
    for (const int64_t C : {1, 8, 20, 33, 128})
        for (const bool with_residual : {false, true})
            for (const bool misaligned : {false, true}) expect_agreement<TypeParam>(2, 3, C, with_residual, misaligned);
}

TYPED_TEST(CudaDropout, NoRowsNoWork) { expect_agreement<TypeParam>(0, 5, 8, true, false); }

}  // namespace

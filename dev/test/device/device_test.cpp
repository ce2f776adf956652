// The functions that a model needs from its device besides the layers. They are written once for devices in host
// memory, and only for those: another device that lacks an overload must not compile, as the host cannot use its
// pointers.
#include <gtest/gtest.h>

#include "layers/global_norm_cpu.h"
#include "layers/layers.h"

namespace {

// A device with all members that the functions use, but whose memory is not the host's.
struct Elsewhere {
    using scalar = float;
    Profile* profile = nullptr;
};
struct Derived : Cpu {};
struct DerivedReference : Reference<double> {};

template <class D>
using Scalar = typename D::scalar;
template <class D>
concept CanAllocate = requires(D& dev) {
    allocate<float>(dev, 1);
};
template <class D>
concept CanZero = requires(D& dev, Scalar<D>* x) {
    zero(dev, x, 1);
};
template <class D>
concept CanSum = requires(D& dev, const Scalar<D>* x) {
    sum(dev, x, 1);
};
template <class D>
concept CanCopyToHost = requires(D& dev, const Scalar<D>* x) {
    to_host(dev, x, 1);
};
template <class D>
concept CanCopyOneToHost = requires(D& dev, const Scalar<D>* x) {
    to_host(dev, x);
};
template <class D>
concept CanConvertToHost = requires(D& dev, float* out, const Scalar<D>* x) {
    to_host(dev, out, x, 1);
};
template <class D>
concept CanTake = requires(D& dev, StepStatus* x) {
    take(dev, x);
};
template <class D>
concept CanPrefetch = requires(D& dev, const int32_t* x) {
    prefetch_batch(dev, x, x, 1);
};
template <class D>
concept CanBatch = requires(D& dev, const int32_t* x) {
    batch_for(dev, x, x, 1);
};
template <class D>
concept CanReplay = requires(D& dev) {
    replay(dev, ReplayKey{}, [] {});
};
template <class D>
concept CanDownload = requires(D& dev, float* x, HostBuffer<float>& copy) {
    from_device(dev, x, 1, copy);
};
template <class D>
concept CanUpload = requires(D& dev, float* x) {
    to_device(dev, x, x, 1);
};
template <class D>
concept CanTime = requires(D& dev) {
    timing_begin(dev, "");
    timing_end(dev, 0.0, "", 0, 0);
};
template <class D>
concept CanAddLoss = requires(D& dev, StepStatus* s, const Scalar<D>* x) {
    add_loss(dev, s, x, 1, 1.0);
};
template <class D>
concept CanDecide = requires(D& dev, StepStatus* s, const Scalar<D>* x) {
    decide(dev, s, x, 1, static_cast<const UpdateParams*>(nullptr));
};
template <class D>
concept CanFindParams = requires(D& dev) {
    on_device(dev, UpdateParams{});
};

// In the order of the list above.
template <class D>
std::vector<bool> hooks() {
    return {CanAllocate<D>, CanZero<D>,     CanSum<D>,    CanCopyToHost<D>, CanCopyOneToHost<D>, CanConvertToHost<D>,
            CanTake<D>,     CanPrefetch<D>, CanBatch<D>,  CanReplay<D>,     CanDownload<D>,      CanUpload<D>,
            CanTime<D>,     CanAddLoss<D>,  CanDecide<D>, CanFindParams<D>};
}

TEST(Device, HooksAreThereForDevicesInHostMemory) {
    const std::vector<bool> all(16, true);
    EXPECT_EQ(hooks<Cpu>(), all);
    EXPECT_EQ(hooks<Reference<double>>(), all);
    EXPECT_EQ(hooks<Reference<float>>(), all);
    EXPECT_EQ(hooks<Derived>(), all);
    EXPECT_EQ(hooks<DerivedReference>(), all);
}

TEST(Device, AnotherDeviceThatLacksThemDoesNotCompile) {
    EXPECT_EQ(hooks<Elsewhere>(), std::vector<bool>(16, false));
    static_assert(!HostDevice<Elsewhere>);
}

}  // namespace

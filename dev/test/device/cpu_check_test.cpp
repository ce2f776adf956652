// The decision of the start-up check. To see that it runs before other code, run a build in an emulator without
// AVX-512, such as valgrind.
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <string>

#include "device/cpu/features.h"

namespace {

int index_of(const char* wanted) {
#define NAME(macro, name, ...) name,
    const char* const names[] = {CPU_FEATURES(NAME, NAME)};
    for (int i = 0; i < cpu_features; ++i)
        if (std::string(names[i]) == wanted) return i;
    return -1;
}

}  // namespace

TEST(CpuCheck, NamesWhatIsNeededAndNotThere) {
    bool needed[cpu_features] = {}, has[cpu_features] = {};
    char names[64];
    EXPECT_EQ(missing_cpu_features(needed, has, names, sizeof names), 0);
    needed[index_of("avx2")] = needed[index_of("fma")] = needed[index_of("avx512bf16")] = true;
    has[index_of("fma")] = has[index_of("avx512f")] = true;
    EXPECT_EQ(missing_cpu_features(needed, has, names, sizeof names), 2);
    EXPECT_STREQ(names, "avx2, avx512bf16");
    EXPECT_EQ(missing_cpu_features(needed, has, names, 8), 2);  // cut short, not written past
    EXPECT_STREQ(names, "avx2, a");
}

TEST(CpuCheck, KnowsWhatThisTestWasBuiltFor) {
#if defined(__AVX2__)
    EXPECT_TRUE(built_with[index_of("avx2")]);
#else
    EXPECT_FALSE(built_with[index_of("avx2")]);
#endif
#if defined(__AVX512F__)
    EXPECT_TRUE(built_with[index_of("avx512f")]);
    EXPECT_STREQ(built_for, "AVX-512");
#else
    EXPECT_FALSE(built_with[index_of("avx512f")]);
#endif
}
#else
TEST(CpuCheck, OtherCpusHaveNone) {}
#endif

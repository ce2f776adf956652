// The x86 extensions that the compiler may use, or that the layers use explicitly, each as the compiler's macro and the
// CPU's name. X is for those that __builtin_cpu_supports of every supported compiler knows by that name. BIT is for
// those that clang before 18 does not know, with their place in cpuid (leaf, subleaf, register, bit).
#pragma once

#include <cstddef>

// clang-format off
#define CPU_FEATURES(X, BIT) \
    X(__SSE3__, "sse3") X(__SSSE3__, "ssse3") X(__SSE4_1__, "sse4.1") \
    X(__SSE4_2__, "sse4.2") X(__POPCNT__, "popcnt") X(__AVX__, "avx") \
    X(__AVX2__, "avx2") X(__FMA__, "fma") X(__BMI__, "bmi") \
    X(__BMI2__, "bmi2") X(__GFNI__, "gfni") X(__AVX512F__, "avx512f") \
    X(__AVX512CD__, "avx512cd") X(__AVX512BW__, "avx512bw") X(__AVX512DQ__, "avx512dq") \
    X(__AVX512VL__, "avx512vl") X(__AVX512IFMA__, "avx512ifma") X(__AVX512VBMI__, "avx512vbmi") \
    X(__AVX512VBMI2__, "avx512vbmi2") X(__AVX512VNNI__, "avx512vnni") X(__AVX512BITALG__, "avx512bitalg") \
    X(__AVX512VPOPCNTDQ__, "avx512vpopcntdq") X(__AVX512BF16__, "avx512bf16") \
    BIT(__F16C__, "f16c", 1, 0, ecx, 29) BIT(__MOVBE__, "movbe", 1, 0, ecx, 22) \
    BIT(__LZCNT__, "lzcnt", 0x80000001, 0, ecx, 5) BIT(__AVX512FP16__, "avx512fp16", 7, 0, edx, 23) \
    BIT(__AVXVNNI__, "avxvnni", 7, 1, eax, 4)
// clang-format on

#define CPU_FEATURE_COUNT(...) +1
constexpr int cpu_features = 0 CPU_FEATURES(CPU_FEATURE_COUNT, CPU_FEATURE_COUNT);

extern const bool built_with[cpu_features];  // what this program was compiled for
extern const char* const built_for;          // the same as one word, for messages

// Writes the names of the features in `needed` that are not in `has`, as "avx2, fma", and returns their number.
int missing_cpu_features(const bool* needed, const bool* has, char* names, size_t size);

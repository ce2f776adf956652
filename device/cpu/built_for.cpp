// Compiled like the layers, so these constants say what their code needs. No code of this file runs.
#if defined(__x86_64__)
#include "device/cpu/features.h"

// A macro that is not defined stays its own name.
#define TEXT_OF(macro) #macro
#define IS_ONE(macro, ...) TEXT_OF(macro)[0] == '1',

const bool built_with[cpu_features] = {CPU_FEATURES(IS_ONE, IS_ONE)};

#if defined(__AVX512F__)
const char* const built_for = "AVX-512";
#elif defined(__AVX2__)
const char* const built_for = "AVX2";
#else
const char* const built_for = "SSE";
#endif
#endif

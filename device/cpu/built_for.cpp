// Constants that list the CPU features of the layers' code, as this file is compiled with the same options. It contains
// no code that runs.
#if defined(__x86_64__)
#include "device/cpu/features.h"

// The text of a macro's value. A macro that is not defined gives its own name.
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

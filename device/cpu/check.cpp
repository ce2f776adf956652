// Checks before anything else runs that this CPU has the features the program was built for; otherwise it would die of
// SIGILL somewhere. The Makefile compiles this file for any x86-64. It uses no templates of the standard library,
// because the linker may take their code from a file that was compiled for newer CPUs.
#if defined(__x86_64__)
#include <cpuid.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/platform.h"
#include "device/cpu/features.h"

int missing_cpu_features(const bool* needed, const bool* has, char* names, size_t size) {
#define NAME(macro, name, ...) name,
    static const char* const all[] = {CPU_FEATURES(NAME, NAME)};
    int missing = 0;
    names[0] = '\0';
    for (int i = 0; i < cpu_features; ++i) {
        if (!needed[i] || has[i]) continue;
        if (missing++) strncat(names, ", ", size - strlen(names) - 1);
        strncat(names, all[i], size - strlen(names) - 1);
    }
    return missing;
}

__attribute__((constructor(101))) static void check_cpu() {
    __builtin_cpu_init();
    struct Registers {
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    };
    const auto cpuid = [](unsigned leaf, unsigned subleaf) {  // zeros if the CPU has no such leaf
        Registers r;
        __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
        return r;
    };
#define HAS(macro, name) __builtin_cpu_supports(name) != 0,
#define HAS_BIT(macro, name, leaf, subleaf, register, bit) (cpuid(leaf, subleaf).register >> bit & 1) != 0,
    const bool has[] = {CPU_FEATURES(HAS, HAS_BIT)};
    char names[512];
    if (missing_cpu_features(built_with, has, names, sizeof names) == 0) return;
    fprintf(stderr, "%s: built for a CPU with %s; this CPU lacks %s; build it on this machine (make clean, make)\n",
            platform::program_name(), built_for, names);
    _exit(2);
}
#endif

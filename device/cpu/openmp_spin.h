// Limits how long OpenMP threads spin at a barrier before they sleep. libgomp's default is 300,000 pauses: 14 ms if a
// pause takes 140 cycles. When another program is busy, spinning threads keep the thread that they wait for off its
// core, and a step of the tiny model takes ten times as long. 10,000 pauses, less than half a millisecond, bridge the
// gaps between parallel loops: a step is as fast as with 300,000, and 3 % faster than with 2,000.
#pragma once

#include <cstdlib>

#if defined(__ELF__)
// libgomp's own variable. libgomp reads its environment when it is loaded, before main, and has no function that sets
// the count later. If libgomp is linked statically (OPENMP in the Makefile) the variable can be set; with a shared
// libgomp, and with LLVM's OpenMP, the variable is not visible, and its address here is null.
extern "C" [[gnu::weak]] unsigned long long gomp_spin_count_var;
inline unsigned long long* spin_count_variable() { return &gomp_spin_count_var; }
#else
inline unsigned long long* spin_count_variable() { return nullptr; }
#endif

// Sets the limit. It must be the first call in main. A value that the user has set in the environment is kept.
inline void limit_spinning() {
    if (spin_count_variable() && !std::getenv("GOMP_SPINCOUNT") && !std::getenv("OMP_WAIT_POLICY"))
        *spin_count_variable() = 10'000;
}

// The limit in pauses, or 0 if it is not known.
inline unsigned long long spin_count() { return spin_count_variable() ? *spin_count_variable() : 0; }

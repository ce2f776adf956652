// Waiting at a barrier, libgomp's threads spin for 300,000 pauses before they sleep: 14 ms where a pause takes 140
// cycles. Beside any other busy program they then keep the very thread that they wait for off its core, and a step of
// the tiny model takes ten times as long. 2,000 pauses, some 90 us, bridge the gaps between our loops. libgomp reads
// this when it is loaded, which is before us: so the program starts itself once more.
#include <cstdlib>
#include <unistd.h>

[[gnu::constructor(102)]] static void limit_spinning([[maybe_unused]] int argc, char** argv) {
    if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
    setenv("GOMP_SPINCOUNT", "2000", 1);
    execv("/proc/self/exe", argv);  // where this fails, we go on as we are
}

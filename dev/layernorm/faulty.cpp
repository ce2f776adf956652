// Checks the faulty backward of an exercise (dev/layernorm/README.md). Exit status 0 once it is repaired.
#include "dev/layernorm/faulty.h"

#include <cstdio>

#include "dev/layernorm/backward_checks.h"

int main(int argc, char** argv) {
    if (argc > 1) {
        std::fprintf(stderr, "layernorm_faulty: found %s, expected no arguments\n", argv[1]);
        return 2;
    }
    bool all = true;
    for (const auto& check : backward_checks::check(faulty_backward)) {
        std::printf("%-36s error %.0e   %s\n", check.name.c_str(), check.error, check.ok() ? "OK" : "NOT OK");
        all = all && check.ok();
    }
    return all ? 0 : 1;
}

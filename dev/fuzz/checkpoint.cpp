#include "dev/fuzz/targets.h"
const FuzzTarget fuzz_checkpoint{"checkpoint", [](std::string_view) {}, [] { return std::vector<std::string>{"x"}; }};

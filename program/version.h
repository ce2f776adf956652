// The text of --version.
#pragma once

#include <string>

// A few lines: program and version, compiler and target, device, and how the threads wait.
std::string version_text();

// What the bits of a result depend on besides the input: version, compiler, target and CPU.
std::string build_text();

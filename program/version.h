// The text of --version.
#pragma once

#include <string>

// A few lines: program and version, compiler and target, device, and how the threads wait.
std::string version_text();

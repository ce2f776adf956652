// Files are read by mapping them. Where one is cut after it was opened, or its disc fails, that is no error that a call
// returns, but SIGBUS at whatever instruction reads it.
#pragma once

#include <string>

// From now on such a signal says, after the program's name, which file it was, and ends the process with status 2.
void explain_bus_errors(const std::string& program);

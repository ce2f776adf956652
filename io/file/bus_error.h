// Files are read by mapping them. If a file is truncated after it was opened, or its disk fails, no call returns an
// error: the instruction that reads it raises SIGBUS.
#pragma once

#include <string>

// From now on such a signal prints the program's name and the file, and ends the process with status 2.
void explain_bus_errors(const std::string& program);

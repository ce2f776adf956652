// What --version prints.
#pragma once

#include <string>

// Which program and version this is, what built it, what it was built for, and how its threads wait; some lines.
std::string version_text();

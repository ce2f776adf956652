// The `report` command: several runs on one page, with their curves, results and the options in which they differ.
#pragma once

#include <string>
#include <vector>

// Writes OUT.html, a new file, about the runs in these directories: at most 20, as many as the page has kinds of lines.
// Throws InputError.
void compare_runs(const std::vector<std::string>& directories, const std::string& out);

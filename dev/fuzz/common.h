// Headers that most readers include. The Makefile compiles them once with clang (common.pch), as they take a third of
// the time that a reader takes to compile. nlohmann::json's members are compiled once too, in libfuzzer.cpp.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

extern template class nlohmann::basic_json<>;

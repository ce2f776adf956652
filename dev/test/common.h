// Headers that most tests include. The Makefile compiles them once (common.h.gch), as they take a third of the time
// that a test takes to compile. Tests include what they use all the same, because not every compiler has this.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

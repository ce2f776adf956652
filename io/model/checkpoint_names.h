// The names of checkpoints and their state file in a run's OUT, for checkpoint.cpp and checkpoint_reading.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

inline constexpr const char* state_name = "trainer_state.json";
inline constexpr const char* best_name = "best";  // the directory of the model with the lowest validation loss

std::string step_name(int64_t step);                      // "step_000500"
std::optional<int64_t> step_of(const std::string& name);  // of a name exactly as step_name writes it
// The steps of the directories OUT/step_NNNNNN that have a trainer_state.json, in ascending order.
std::vector<int64_t> checkpoint_steps(const std::string& out);

// The reading side of checkpoint.h: finds the newest checkpoint, verifies its files and reads its state.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/model/checkpoint.h"
#include "io/model/checkpoint_names.h"
#include "io/file/checksum.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"

namespace fs = std::filesystem;
using nlohmann::json;

std::string step_name(int64_t step) {
    const std::string digits = std::to_string(step);
    return "step_" + std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits;
}

std::optional<int64_t> step_of(const std::string& name) {
    const std::string digits = name.starts_with("step_") ? name.substr(5) : "";
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos)
        return std::nullopt;
    const int64_t step = std::stoll(digits);
    return step_name(step) == name ? std::optional(step) : std::nullopt;
}

namespace {

// The steps of the directories OUT/step_NNNNNN, including those whose trainer_state.json is missing.
std::vector<int64_t> named_steps(const std::string& out) {
    std::vector<int64_t> steps;
    std::error_code ignored;
    for (const auto& item : fs::directory_iterator(out, ignored))
        if (const auto step = step_of(item.path().filename().string()))
            if (!item.is_symlink() && item.is_directory(ignored)) steps.push_back(*step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

}  // namespace

std::vector<int64_t> checkpoint_steps(const std::string& out) {
    std::vector<int64_t> steps = named_steps(out);
    std::erase_if(steps, [&](int64_t s) { return !path_exists((fs::path(out) / step_name(s) / state_name).string()); });
    return steps;
}

namespace {

bool has_own_checksum(const json& root) {  // early versions wrote neither a checksum nor these fields
    return root.contains("crc32") || root.contains("evaluated") || root.contains("sampled");
}

void check_state_checksum(const std::string& path, const json& root) {
    if (has_own_checksum(root)) check_own_checksum(path, root, "the file is damaged: use another checkpoint");
}

std::vector<double> numbers(const std::string& path, const json& root, const char* key) {
    const json list = root.value(key, json());
    const auto is_number = [](const json& value) { return value.is_number(); };
    if (!list.is_array() || list.size() > 128 || !std::all_of(list.begin(), list.end(), is_number))
        bad_input(path, key, json_text(list), "at most 128 numbers", "use another checkpoint");
    return list.get<std::vector<double>>();
}

double number_or_nan(const std::string& path, const json& root, const char* key) {
    const json value = root.value(key, json("missing"));
    if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();  // JSON has no NaN; it is written as null
    if (!value.is_number()) bad_input(path, key, json_text(value), "a number", "use another checkpoint");
    return value.get<double>();
}

// A file is missing or has another size, as after an incomplete copy. Damaged bytes are another error.
struct NotWhole : InputError {
    using InputError::InputError;
};
[[noreturn]] void not_whole(const std::string& file, const std::string& what) {
    throw NotWhole(file + ": " + what + "; this checkpoint is incomplete: use another one");
}

// A file that trainer_state.json lists.
struct ListedFile {
    std::string name;
    int64_t bytes;
    uint32_t crc;
};

std::vector<ListedFile> listed_files(const std::string& checkpoint) {
    const std::string path = checkpoint + "/" + state_name;
    if (!path_exists(path)) not_whole(path, "No such file or directory");
    const json root = read_json_file(path), files = root.value("files", json());
    check_state_checksum(path, root);
    if (!files.is_object()) bad_input(path, "files", json_text(files), "an object", "use another checkpoint");
    std::vector<ListedFile> list;
    for (const auto& [name, item] : files.items()) {
        if (!is_file_name(name) || !item.is_object())
            bad_input(path, "files", one_line(name), "the name of a file beside it", "use another checkpoint");
        list.push_back({name, json_integer(path, item, "bytes", 0, std::numeric_limits<int64_t>::max()),
                        static_cast<uint32_t>(json_integer(path, item, "crc32", 0, 0xFFFFFFFF))});
    }
    return list;
}

void check_size(const std::string& checkpoint, const ListedFile& listed) {
    const std::string file = checkpoint + "/" + listed.name;
    if (!path_exists(file)) not_whole(file, "No such file or directory");
    const int64_t found = MappedFile(file).size();
    if (found != listed.bytes)
        not_whole(file, "size: found " + std::to_string(found) + " bytes, expected " + std::to_string(listed.bytes));
}

void check_sum(const std::string& checkpoint, const ListedFile& listed) {
    const MappedFile file(checkpoint + "/" + listed.name);
    const uint32_t found = checksum(file);
    if (found != listed.crc)
        bad_input(file.path(), "CRC-32", std::to_string(found), std::to_string(listed.crc),
                  "the file is damaged: use another checkpoint");
}

bool passes(void (*check)(const std::string&), const std::string& checkpoint) {
    try {
        check(checkpoint);
        return true;
    } catch (const InputError&) {
        return false;
    }
}
bool is_whole(const std::string& checkpoint) {
    return passes(
        [](const std::string& path) {
            read_trainer_state(path);
            for (const ListedFile& listed : listed_files(path)) check_size(path, listed);
        },
        checkpoint);
}
bool is_intact(const std::string& checkpoint) { return passes(verify_checkpoint, checkpoint); }

}  // namespace

std::optional<std::string> find_latest_checkpoint(const std::string& out) {
    std::error_code ignored;
    const std::string latest = fs::read_symlink(fs::path(out) / "latest", ignored).string();
    const auto path = [&](const std::string& name) { return (fs::path(out) / name).string(); };
    if (step_of(latest) && is_whole(path(latest))) return path(latest);
    const std::vector<int64_t> steps = checkpoint_steps(out);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step)
        if (is_whole(path(step_name(*step)))) return path(step_name(*step));
    return std::nullopt;
}

TrainerState read_trainer_state(const std::string& checkpoint) {
    const std::string path = checkpoint + "/" + state_name;
    const json root = read_json_file(path), options = root.value("options", json());
    check_state_checksum(path, root);
    if (!options.is_object()) bad_input(path, "options", json_text(options), "an object", "use another checkpoint");
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    TrainerState state;
    state.step = json_integer(path, root, "step", 0, most);
    state.position = json_integer(path, root, "position", 0, most);
    state.seconds = number_or_nan(path, root, "seconds");
    state.best_val_loss = number_or_nan(path, root, "best_val_loss");
    state.options = options.dump(-1, ' ', false, json::error_handler_t::replace);
    state.evaluated = state.sampled = state.last_applied = state.step;
    if (!has_own_checksum(root)) return state;
    state.evaluated = json_integer(path, root, "evaluated", -1, state.step);
    state.sampled = json_integer(path, root, "sampled", -1, state.step);
    if (root.contains("last_applied")) state.last_applied = json_integer(path, root, "last_applied", 0, state.step);
    if (root.contains("best_step")) state.best_step = json_integer(path, root, "best_step", -1, state.step);
    if (root.contains("evaluations_since_best"))
        state.evaluations_since_best = json_integer(path, root, "evaluations_since_best", 0, most);
    if (root.contains("data")) state.data = json_integer(path, root, "data", -1, 0xFFFFFFFF);
    if (root.contains("data_order")) state.data_order = json_integer(path, root, "data_order", 1, most);
    state.losses = numbers(path, root, "losses");
    state.norms = numbers(path, root, "norms");
    return state;
}

// Checks all sizes first, to distinguish an incomplete copy from a damaged one.
void verify_checkpoint(const std::string& checkpoint) {
    const std::vector<ListedFile> list = listed_files(checkpoint);
    for (const ListedFile& listed : list) check_size(checkpoint, listed);
    for (const ListedFile& listed : list) check_sum(checkpoint, listed);
}

std::vector<FileCheck> check_files(const std::string& checkpoint) {
    std::vector<FileCheck> checks;
    const auto check = [&](const std::string& name, const std::function<void()>& read) {
        checks.push_back({name, ""});
        try {
            read();
        } catch (const InputError& error) {
            checks.back().trouble = error.what();
        }
    };
    std::vector<ListedFile> list;
    check(state_name, [&] {
        read_trainer_state(checkpoint);
        list = listed_files(checkpoint);
    });
    for (const ListedFile& listed : list)
        check(listed.name, [&] {
            check_size(checkpoint, listed);
            check_sum(checkpoint, listed);
        });
    return checks;
}

std::vector<std::string> list_checkpoints(const std::string& out) {
    std::vector<std::string> paths;
    for (const int64_t step : named_steps(out)) paths.push_back((fs::path(out) / step_name(step)).string());
    return paths;
}

std::optional<std::string> checkpoint_to_resume(const std::string& out, std::vector<std::string>& passed_over) {
    const auto path = [&](int64_t step) { return (fs::path(out) / step_name(step)).string(); };
    std::vector<int64_t> steps = checkpoint_steps(out);
    if (steps.empty()) {
        const fs::path latest = fs::path(out) / "latest";
        std::error_code ignored;
        if (!fs::is_symlink(latest, ignored)) return std::nullopt;
        verify_checkpoint(latest.string());
        return latest.string();
    }
    steps = named_steps(out);  // a checkpoint without trainer_state.json is reported too
    while (!steps.empty()) {
        const std::string newest = path(steps.back());
        steps.pop_back();
        try {
            verify_checkpoint(newest);
            return newest;
        } catch (const NotWhole& reason) {
            passed_over.push_back(reason.what());
        } catch (const InputError& damage) {
            const auto whole =
                std::find_if(steps.rbegin(), steps.rend(), [&](int64_t s) { return is_intact(path(s)); });
            throw InputError(std::string(damage.what()) + ": move " + newest + " away, and --resume " +
                             (whole == steps.rend() ? "starts at the first step again, as no other checkpoint is whole"
                                                    : "continues from " + path(*whole) + ", which is whole"));
        }
    }
    throw InputError(passed_over.front());
}

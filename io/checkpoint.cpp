#include "io/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "io/crc32.h"
#include "io/error.h"
#include "io/file.h"
#include "io/hugging_face.h"
#include "io/json.h"
#include "io/llmc_files.h"
#include "io/safetensors.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* state_name = "trainer_state.json";

std::string step_name(int64_t step) {
    const std::string digits = std::to_string(step);
    return "step_" + std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits;
}

// The step of a name exactly as step_name writes it
std::optional<int64_t> step_of(const std::string& name) {
    const std::string digits = name.starts_with("step_") ? name.substr(5) : "";
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos)
        return std::nullopt;
    const int64_t step = std::stoll(digits);
    return step_name(step) == name ? std::optional(step) : std::nullopt;
}

// The directories OUT/step_NNNNNN that have a trainer_state.json, by step
std::vector<int64_t> checkpoint_steps(const std::string& out) {
    std::vector<int64_t> steps;
    std::error_code ignored;
    for (const auto& item : fs::directory_iterator(out, ignored))
        if (const auto step = step_of(item.path().filename().string()))
            if (!item.is_symlink() && item.is_directory(ignored) && path_exists((item.path() / state_name).string()))
                steps.push_back(*step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

// What a save that was cut off has left: .step_NNNNNN.tmp
void remove_leftovers(const std::string& out) {
    std::vector<fs::path> leftovers;
    for (const auto& item : fs::directory_iterator(out)) {
        const std::string name = item.path().filename().string();
        if (name.starts_with(".") && name.ends_with(".tmp") && name.size() > 5 &&
            step_of(name.substr(1, name.size() - 5)) && !item.is_symlink() && item.is_directory())
            leftovers.push_back(item.path());
    }
    for (const fs::path& path : leftovers) fs::remove_all(path);
}

void sync_files(const std::string& directory) {
    for (const auto& item : fs::directory_iterator(directory)) {
        if (!item.is_regular_file()) continue;
        const int fd = open(item.path().c_str(), O_RDONLY | O_CLOEXEC);
        const int error = fd < 0 || fsync(fd) != 0 ? errno : 0;
        if (fd >= 0) close(fd);
        if (error != 0) throw fs::filesystem_error("fsync", item.path(), {error, std::generic_category()});
    }
    sync_directory(directory);
}

json listing(const std::string& directory) {
    json files = json::object();
    for (const auto& item : fs::directory_iterator(directory)) {
        const MappedFile file(item.path().string());
        files[item.path().filename().string()] = {{"bytes", file.size()}, {"crc32", crc32(file.data(), file.size())}};
    }
    return files;
}

// An object's text with one more line: the checksum of all that stands before that line.
std::string with_own_checksum(std::string object) {
    object.resize(object.size() - 2);  // "\n}"
    const uint32_t crc = crc32(reinterpret_cast<const uint8_t*>(object.data()), std::ssize(object));
    return object + ",\n  \"crc32\": " + std::to_string(crc) + "\n}\n";
}

bool has_own_checksum(const json& root) {  // trainer_state.json once had none, nor these fields
    return root.contains("crc32") || root.contains("evaluated") || root.contains("sampled");
}

void check_own_checksum(const std::string& path, const json& root) {
    if (!has_own_checksum(root)) return;
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
    const size_t end = std::min(text.rfind(",\n  \"crc32\": "), text.size());
    const uint32_t found = crc32(file.data(), static_cast<int64_t>(end));
    if (!root.contains("crc32") || root["crc32"] != found)
        bad_input(path, "CRC-32", std::to_string(found), json_text(root.value("crc32", json())) + ", as it says itself",
                  "the file is damaged: use another checkpoint");
}

void write_files(const std::string& directory, const GPT2Config& config, const float* parameters,
                 const Tokenizer& tokenizer, const std::vector<OptimizerBuffer>& optimizer, const TrainerState& state) {
    write_model_directory(directory, config, parameters, &tokenizer);
    std::vector<TensorToWrite> tensors;
    for (const OptimizerBuffer& buffer : optimizer)
        tensors.push_back({buffer.name, DType::F32, {buffer.size}, buffer.data});
    write_safetensors(directory + "/optimizer.safetensors", tensors);
    const nlohmann::ordered_json root = {{"step", state.step},
                                         {"position", state.position},
                                         {"seconds", state.seconds},
                                         {"best_val_loss", state.best_val_loss},
                                         {"evaluated", state.evaluated},
                                         {"sampled", state.sampled},
                                         {"losses", state.losses},
                                         {"norms", state.norms},
                                         {"options", parse_json_object("options", state.options)},
                                         {"files", listing(directory)}};
    write_file_atomically(directory + "/" + state_name, with_own_checksum(root.dump(2)));
}

// Renames OUT/.step.tmp to OUT/step. Where that step was saved before, the two change places in one go.
void put_in_place(const fs::path& temporary, const fs::path& checkpoint) {
    if (!path_exists(checkpoint.string())) {
        fs::rename(temporary, checkpoint);
        return;
    }
    if (!path_exists((checkpoint / state_name).string()))
        bad_input(checkpoint.string(), "checkpoint", "something else of this name", "no such file or directory",
                  "move it away");
    if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, checkpoint.c_str(), RENAME_EXCHANGE) != 0)
        throw fs::filesystem_error("rename", checkpoint, {errno, std::generic_category()});
    fs::remove_all(temporary);
}

void point_latest_at(const fs::path& out, const std::string& name) {
    const fs::path temporary = out / ".latest.tmp";
    fs::remove(temporary);
    fs::create_directory_symlink(name, temporary);
    fs::rename(temporary, out / "latest");
    sync_directory(out.string());
}

// Renamed first, so that a crash half-way leaves nothing that looks like a checkpoint.
void remove_old(const std::string& out, int64_t saved, int64_t keep) {
    const std::vector<int64_t> steps = checkpoint_steps(out);
    if (keep <= 0) return;
    for (int64_t i = 0; i < static_cast<int64_t>(steps.size()) - keep; i++) {
        if (steps[i] == saved) continue;
        const std::string name = step_name(steps[i]);
        const fs::path aside = fs::path(out) / ("." + name + ".tmp");
        fs::rename(fs::path(out) / name, aside);
        fs::remove_all(aside);
    }
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
    if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();  // how JSON writes it
    if (!value.is_number()) bad_input(path, key, json_text(value), "a number", "use another checkpoint");
    return value.get<double>();
}

// A file is missing or short, as when only a part was copied; not: its bytes are others than were written.
struct NotWhole : InputError {
    using InputError::InputError;
};
[[noreturn]] void not_whole(const std::string& file, const std::string& found, const std::string& expected) {
    throw NotWhole(file + ": size: found " + found + ", expected " + expected + "; use another checkpoint");
}

struct ListedFile {
    std::string name;
    int64_t bytes;
    uint32_t crc;
};

// The files that trainer_state.json lists; throws unless each is there in its size.
std::vector<ListedFile> check_sizes(const std::string& checkpoint) {
    const std::string path = checkpoint + "/" + state_name;
    if (!path_exists(path)) not_whole(path, "No such file", "what makes a checkpoint whole");
    const json root = read_json_file(path), files = root.value("files", json());
    check_own_checksum(path, root);
    if (!files.is_object()) bad_input(path, "files", json_text(files), "an object", "use another checkpoint");
    std::vector<ListedFile> list;
    for (const auto& [name, item] : files.items()) {
        if (name.empty() || fs::path(name).filename() != name || !item.is_object())
            bad_input(path, "files", one_line(name), "the name of a file beside it", "use another checkpoint");
        list.push_back({name, json_integer(path, item, "bytes", 0, std::numeric_limits<int64_t>::max()),
                        static_cast<uint32_t>(json_integer(path, item, "crc32", 0, 0xFFFFFFFF))});
        const std::string file = checkpoint + "/" + name, expected = std::to_string(list.back().bytes) + " bytes";
        if (!path_exists(file)) not_whole(file, "No such file", expected);
        const int64_t found = MappedFile(file).size();
        if (found != list.back().bytes) not_whole(file, std::to_string(found) + " bytes", expected);
    }
    return list;
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
    return passes([](const std::string& path) { read_trainer_state(path), check_sizes(path); }, checkpoint);
}
bool is_intact(const std::string& checkpoint) { return passes(verify_checkpoint, checkpoint); }

}  // namespace

std::string find_model(const std::string& path) {
    if (is_directory(path)) {
        if (path_exists(path + "/config.json")) return path;
        if (const auto checkpoint = find_latest_checkpoint(path)) return *checkpoint;
        bad_input(path, "config.json", "none, and no checkpoint",
                  "a Hugging Face GPT-2 directory, a checkpoint or a run's directory", "check the path");
    }
    const fs::path file(path);
    if (file.extension() != ".safetensors") return path;
    if (file.filename() != "model.safetensors")
        bad_input(path, "file name", one_line(file.filename().string()), "model.safetensors with config.json beside it",
                  "pass the model's directory");
    return file.has_parent_path() ? file.parent_path().string() : ".";
}

GPT2Config read_model_config(const std::string& path) {
    const std::string model = find_model(path);
    return is_directory(model) ? read_hugging_face_config(model) : read_llmc_model_config(model);
}

void read_model(const std::string& path, const GPT2Config& config, float* parameters) {
    const std::string model = find_model(path);
    if (read_model_config(model) != config)
        bad_input(path, "configuration", "other counts than when it was opened", "an unchanged model", "start again");
    if (is_directory(model))
        read_hugging_face_model(model, config, parameters);
    else
        read_llmc_model(model, parameters);
}

std::shared_ptr<const Tokenizer> read_model_tokenizer(const std::string& path) {
    const std::string model = find_model(path);
    if (is_directory(model)) {
        for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "vocab.bpe"})
            if (path_exists(model + "/" + name)) return load_tokenizer(model);
        return nullptr;
    }
    const int64_t vocab = read_llmc_model_config(model).vocab;
    if (vocab == 50257) return load_tokenizer("gpt2");
    if (vocab == 256) return load_tokenizer("byte");
    return nullptr;
}

void write_model_directory(const std::string& directory, const GPT2Config& config, const float* parameters,
                           const Tokenizer* tokenizer) {
    const bool gpt2_vocabulary = !tokenizer && config.vocab == 50257;
    write_hugging_face_model(directory, config, parameters,
                             tokenizer         ? tokenizer->end_of_text()
                             : gpt2_vocabulary ? 50256
                                               : -1);
    if (tokenizer) tokenizer->save_hugging_face(directory);
    sync_files(directory);
}

std::string save_checkpoint(const std::string& out, const GPT2Config& config, const float* parameters,
                            const Tokenizer& tokenizer, const std::vector<OptimizerBuffer>& optimizer,
                            const TrainerState& state, int64_t keep) {
    const std::string name = step_name(state.step);
    const fs::path temporary = fs::path(out) / ("." + name + ".tmp"), checkpoint = fs::path(out) / name;
    try {
        fs::create_directories(out);
        remove_leftovers(out);
        fs::create_directory(temporary);
        try {
            write_files(temporary.string(), config, parameters, tokenizer, optimizer, state);
            put_in_place(temporary, checkpoint);
        } catch (...) {
            std::error_code ignored;
            fs::remove_all(temporary, ignored);
            throw;
        }
        sync_directory(out);
        point_latest_at(out, name);
        remove_old(out, state.step, keep);
    } catch (const fs::filesystem_error& e) {
        bad_input(e.path1().string(), "saving the checkpoint", e.code().message(), "a directory that can be written",
                  "free some space or check the path and its permissions");
    }
    return checkpoint.string();
}

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
    check_own_checksum(path, root);
    if (!options.is_object()) bad_input(path, "options", json_text(options), "an object", "use another checkpoint");
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    TrainerState state;
    state.step = json_integer(path, root, "step", 0, most);
    state.position = json_integer(path, root, "position", 0, most);
    state.seconds = number_or_nan(path, root, "seconds");
    state.best_val_loss = number_or_nan(path, root, "best_val_loss");
    state.options = options.dump(-1, ' ', false, json::error_handler_t::replace);
    state.evaluated = state.sampled = state.step;
    if (!has_own_checksum(root)) return state;
    state.evaluated = json_integer(path, root, "evaluated", -1, state.step);
    state.sampled = json_integer(path, root, "sampled", -1, state.step);
    state.losses = numbers(path, root, "losses");
    state.norms = numbers(path, root, "norms");
    return state;
}

void read_optimizer(const std::string& checkpoint, const std::vector<OptimizerBuffer>& optimizer) {
    const SafetensorsFile file(checkpoint + "/optimizer.safetensors");
    for (const OptimizerBuffer& buffer : optimizer) {
        const SafetensorsFile::Entry* entry = file.find(buffer.name);
        const std::string expected = "F32 of shape " + shape_text({buffer.size});
        if (!entry || entry->dtype != DType::F32 || entry->shape != std::vector{buffer.size})
            bad_input(file.path(), "tensor " + buffer.name,
                      entry ? one_line(entry->dtype_name) + " of shape " + shape_text(entry->shape) : "nothing",
                      expected, "resume with the options of the run that wrote it");
    }
    for (const OptimizerBuffer& buffer : optimizer) file.read(*file.find(buffer.name), buffer.data);
}

void verify_checkpoint(const std::string& checkpoint) {
    for (const ListedFile& listed : check_sizes(checkpoint)) {
        const MappedFile file(checkpoint + "/" + listed.name);
        const uint32_t found = crc32(file.data(), file.size());
        if (found != listed.crc)
            bad_input(file.path(), "CRC-32", std::to_string(found), std::to_string(listed.crc),
                      "the file is damaged: use another checkpoint");
    }
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
                             (whole == steps.rend() ? "begins at the first step again, as no other is whole"
                                                    : "goes on from " + path(*whole) + ", which is whole"));
        }
    }
    throw InputError(passed_over.front());
}

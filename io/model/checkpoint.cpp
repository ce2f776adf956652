#include "io/model/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/model/checkpoint_names.h"
#include "io/file/checksum.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/gguf_file.h"
#include "io/model/gguf.h"
#include "io/model/hugging_face.h"
#include "io/file/json.h"
#include "io/model/llmc_files.h"
#include "device/platform.h"
#include "io/model/safetensors.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Removes the directories .step_NNNNNN.tmp and .best.tmp, which an interrupted save leaves.
void remove_leftovers(const std::string& out) {
    std::vector<fs::path> leftovers;
    for (const auto& item : fs::directory_iterator(out)) {
        const std::string name = item.path().filename().string();
        if (!name.starts_with(".") || !name.ends_with(".tmp") || name.size() <= 5) continue;
        const std::string saved = name.substr(1, name.size() - 5);
        if ((saved == best_name || step_of(saved)) && !item.is_symlink() && item.is_directory())
            leftovers.push_back(item.path());
    }
    for (const fs::path& path : leftovers) fs::remove_all(path);
}

json listing(const std::vector<WrittenFile>& written) {
    json files = json::object();
    for (const WrittenFile& file : written)
        files[fs::path(file.path).filename().string()] = {{"bytes", file.bytes},
                                                          {"crc32", combined_checksum(file.checksums, file.bytes)}};
    return files;
}

void write_files(const std::string& directory, const GPT2Config& config, const float* parameters,
                 const Tokenizer& tokenizer, const std::vector<OptimizerBuffer>& optimizer, const TrainerState& state) {
    std::vector<WrittenFile> written = write_model_directory(directory, config, parameters, &tokenizer);
    std::vector<TensorToWrite> tensors;
    for (const OptimizerBuffer& buffer : optimizer)
        tensors.push_back({buffer.name, DType::F32, {buffer.size}, buffer.data, false, buffer.read});
    written.push_back(write_safetensors(directory + "/optimizer.safetensors", tensors));
    const nlohmann::ordered_json root = {{"step", state.step},
                                         {"position", state.position},
                                         {"seconds", state.seconds},
                                         {"best_val_loss", state.best_val_loss},
                                         {"best_step", state.best_step},
                                         {"evaluations_since_best", state.evaluations_since_best},
                                         {"evaluated", state.evaluated},
                                         {"sampled", state.sampled},
                                         {"data", state.data},
                                         {"data_order", state.data_order},
                                         {"losses", state.losses},
                                         {"norms", state.norms},
                                         {"last_applied", state.last_applied},
                                         {"options", parse_json_object("options", state.options)},
                                         {"files", listing(written)}};
    write_file_atomically(directory + "/" + state_name, with_own_checksum(root.dump(2)));
}

void saving(const auto& action) {
    try {
        action();
    } catch (const fs::filesystem_error& e) {
        throw InputError(e.path1().string() + ": saving the checkpoint failed: " + e.code().message() +
                         "; free some space, or check the path and its permissions");
    }
}

// Renames OUT/.step.tmp to OUT/step. If that step was saved before, which `marker` shows, a file that it then has, the
// two directories are exchanged atomically.
void put_in_place(const fs::path& temporary, const fs::path& checkpoint, const char* marker) {
    if (!path_exists(checkpoint.string())) {
        fs::rename(temporary, checkpoint);
        return;
    }
    if (!path_exists((checkpoint / marker).string()))
        throw InputError(checkpoint.string() + ": exists and is not a checkpoint; move it away");
    if (platform::exchange(temporary.c_str(), checkpoint.c_str()) == 0) {
        fs::remove_all(temporary);
        return;
    }
    if (errno != ENOSYS && errno != EINVAL && errno != ENOTSUP)
        throw fs::filesystem_error("rename", checkpoint, {errno, std::generic_category()});
    // Exchanging is not supported here: a crash between the two renames leaves the earlier save as OUT/.step.old only.
    const fs::path aside = checkpoint.parent_path() / ("." + checkpoint.filename().string() + ".old");
    fs::remove_all(aside);
    fs::rename(checkpoint, aside);
    fs::rename(temporary, checkpoint);
    fs::remove_all(aside);
}

// Writes the directory OUT/name by write(its temporary path).
void save_directory(const std::string& out, const std::string& name, const char* marker, const auto& write) {
    const fs::path temporary = fs::path(out) / ("." + name + ".tmp");
    fs::create_directories(out);
    remove_leftovers(out);
    fs::create_directory(temporary);
    try {
        write(temporary.string());
        put_in_place(temporary, fs::path(out) / name, marker);
    } catch (...) {
        std::error_code ignored;
        fs::remove_all(temporary, ignored);
        throw;
    }
    sync_directory(out);
}

void point_latest_at(const fs::path& out, const std::string& name) {
    const fs::path temporary = out / ".latest.tmp", latest = out / "latest";
    if (!fs::is_symlink(latest) && is_directory(latest.string()))  // as after cp -rL, which follows symbolic links
        throw InputError(latest.string() + ": a directory, not a symbolic link to the newest checkpoint; move it away");
    fs::remove(temporary);
    fs::create_directory_symlink(name, temporary);
    fs::rename(temporary, latest);
    sync_directory(out.string());
}

// Removes old checkpoints. Each is renamed first, so that a crash leaves no half-removed checkpoint under its name.
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

}  // namespace

std::string find_model(const std::string& path) {
    if (is_directory(path)) {
        if (path_exists(path + "/config.json")) return path;
        if (const auto checkpoint = find_latest_checkpoint(path)) return *checkpoint;
        throw InputError(path +
                         ": no config.json and no checkpoint in it; pass a Hugging Face GPT-2 directory, a checkpoint "
                         "or a run's directory");
    }
    const fs::path file(path);
    if (file.extension() != ".safetensors") return path;
    if (file.filename() != "model.safetensors")
        throw InputError(path +
                         ": this file alone is not a model; pass the model's directory (config.json and "
                         "model.safetensors)");
    return file.has_parent_path() ? file.parent_path().string() : ".";
}

GPT2Config read_model_config(const std::string& path) {
    const std::string model = find_model(path);
    return is_directory(model) ? read_hugging_face_config(model)
           : is_gguf(model)    ? read_gguf_config(model)
                               : read_llmc_model_config(model);
}

void read_model(const std::string& path, const GPT2Config& config, float* parameters) {
    const std::string model = find_model(path);
    if (read_model_config(model) != config)
        throw InputError(path + ": the model changed while it was being read; start again");
    if (is_directory(model))
        read_hugging_face_model(model, config, parameters);
    else if (is_gguf(model))
        read_gguf_model(model, config, parameters);
    else
        read_llmc_model(model, parameters);
}

std::string nonfinite_values(const GPT2Config& config, const float* parameters) {
    for (const Parameter& p : ParameterTable(config).rows)
        for (int64_t l = 0; l < p.copies; l++) {
            const float* values = parameters + p.at(l);
            const int64_t size = p.piece();
            int64_t count = 0;
#pragma omp parallel for simd reduction(+ : count)
            for (int64_t i = 0; i < size; i++) count += !std::isfinite(values[i]);
            if (count > 0)
                return "tensor " + p.hf_name(l) + ": " + std::to_string(count) + " NaN or infinite value" +
                       (count > 1 ? "s" : "");
        }
    return "";
}

void read_finite_model(const std::string& path, const GPT2Config& config, float* parameters) {
    read_model(path, config, parameters);
    if (const std::string found = nonfinite_values(config, parameters); !found.empty())
        throw CheckFailed(path + ": " + found + "; use an earlier checkpoint or fetch the model again");
}

std::shared_ptr<const Tokenizer> read_model_tokenizer(const std::string& path, const TokenizerSettings& settings) {
    const std::string model = find_model(path);
    if (is_directory(model)) {
        for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "vocab.bpe"})
            if (path_exists(model + "/" + name)) return load_tokenizer(model, settings);
        return nullptr;
    }
    if (is_gguf(model)) return has_gguf_tokenizer(model) ? load_tokenizer(model, settings) : nullptr;
    const int64_t vocab = read_llmc_model_config(model).vocab;
    if (vocab == 50257) return load_tokenizer("gpt2", settings);
    if (vocab == 256) return load_tokenizer("byte", settings);
    return nullptr;
}

std::shared_ptr<const Tokenizer> tokenizer_for_model(const std::string& spec, const std::string& path,
                                                     const TokenizerSettings& settings) {
    if (const auto tokenizer = spec.empty() ? read_model_tokenizer(path, settings) : load_tokenizer(spec, settings);
        tokenizer && tokenizer->reads_text())
        return tokenizer;
    const std::string model = find_model(path);
    return no_tokenizer(is_directory(model) ? read_hugging_face_end_of_text(model) : -1);
}

std::vector<WrittenFile> write_model_directory(const std::string& directory, const GPT2Config& config,
                                               const float* parameters, const Tokenizer* tokenizer) {
    const bool gpt2_vocabulary = !tokenizer && config.vocab == 50257;
    const int32_t end_of_text = tokenizer ? tokenizer->end_of_text() : gpt2_vocabulary ? 50256 : -1;
    std::vector<WrittenFile> written =
        write_hugging_face_model(directory, config, parameters, end_of_text < config.vocab ? end_of_text : -1);
    if (tokenizer) std::ranges::move(tokenizer->save_hugging_face(directory), std::back_inserter(written));
    return written;
}

std::string save_checkpoint(const std::string& out, const GPT2Config& config, const float* parameters,
                            const Tokenizer& tokenizer, const std::vector<OptimizerBuffer>& optimizer,
                            const TrainerState& state, int64_t keep) {
    const std::string name = step_name(state.step);
    saving([&] {
        save_directory(out, name, state_name, [&](const std::string& directory) {
            write_files(directory, config, parameters, tokenizer, optimizer, state);
        });
        point_latest_at(out, name);
        remove_old(out, state.step, keep);
    });
    return (fs::path(out) / name).string();
}

std::string save_best(const std::string& out, const GPT2Config& config, const float* parameters,
                      const Tokenizer& tokenizer) {
    saving([&] {
        save_directory(out, best_name, "config.json", [&](const std::string& directory) {
            write_model_directory(directory, config, parameters, &tokenizer);
        });
    });
    return (fs::path(out) / best_name).string();
}

void read_optimizer(const std::string& checkpoint, const std::vector<OptimizerBuffer>& optimizer) {
    const SafetensorsFile file(checkpoint + "/optimizer.safetensors");
    for (const OptimizerBuffer& buffer : optimizer) {
        const SafetensorsFile::Entry* entry = file.find(buffer.name);
        const std::string expected = "F32 of shape " + shape_text({buffer.size});
        if (!entry || entry->dtype != DType::F32 || entry->shape != std::vector{buffer.size})
            bad_input(file.path(), "tensor " + buffer.name,
                      entry ? one_line(entry->dtype_name) + " of shape " + shape_text(entry->shape) : "no such tensor",
                      expected, "resume with the options of the run that wrote it");
    }
    for (const OptimizerBuffer& buffer : optimizer)
        file.read_part(*file.find(buffer.name), buffer.begin, buffer.end, buffer.data);
}

void mend_latest(const std::string& checkpoint) {
    const fs::path path(checkpoint), out = path.parent_path();
    std::error_code ignored;
    const std::string name = path.filename().string(), latest = fs::read_symlink(out / "latest", ignored).string();
    if (step_of(name) && latest != name) saving([&] { point_latest_at(out, name); });
}

// The `info` command: describes a file or directory, and verifies its checksums.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>

#include "io/model/checkpoint.h"
#include "program/info.h"
#include "io/data/choices.h"
#include "io/data/dataset.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/gguf_file.h"
#include "io/text/documents.h"
#include "io/text/file_kind.h"
#include "io/text/text_pieces.h"
#include "io/file/json.h"
#include "io/model/gguf.h"
#include "io/model/llmc_files.h"
#include "program/log.h"
#include "program/run_directory.h"
#include "io/model/safetensors.h"
#include "io/data/text_cache.h"

namespace fs = std::filesystem;

namespace {

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
    va_list arguments, again;
    va_start(arguments, pattern);
    va_copy(again, arguments);
    std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, pattern, arguments)), '\0');
    std::vsnprintf(text.data(), text.size() + 1, pattern, again);
    va_end(again);
    va_end(arguments);
    return text;
}

// 124439808 -> "124,439,808"
std::string grouped(int64_t n) {
    std::string text = std::to_string(n);
    for (int64_t i = static_cast<int64_t>(text.size()) - 3; i > 0; i -= 3) text.insert(static_cast<size_t>(i), 1, ',');
    return text;
}

struct Statistics {
    double low = INFINITY, high = -INFINITY, mean = NAN, deviation = NAN;
    int64_t broken = 0;  // NaN or infinite
};

Statistics statistics(const float* x, int64_t n) {
    Statistics s;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        const double v = x[i];
        if (!std::isfinite(v)) s.broken++;
        s.low = std::min(s.low, v), s.high = std::max(s.high, v), sum += v;
    }
    s.mean = sum / static_cast<double>(n);
    for (int64_t i = 0; i < n; i++) squares += (x[i] - s.mean) * (x[i] - s.mean);
    s.deviation = std::sqrt(squares / static_cast<double>(n));
    return s;
}

void print_heading(std::ostream& out, int width) {
    out << format("  %-*s  %-18s %11s %11s %11s %11s\n", width, "tensor", "shape", "min", "max", "mean", "std");
}

void print_row(std::ostream& out, int width, const std::string& name, const std::string& shape, const float* x,
               int64_t n) {
    const Statistics s = statistics(x, n);
    out << format("  %-*s  %-18s %11.4g %11.4g %11.4g %11.4g", width, name.c_str(), shape.c_str(), s.low, s.high,
                  s.mean, s.deviation);
    if (s.broken > 0) out << "  " << grouped(s.broken) << " NaN or infinite";
    out << '\n';
}

// Prints statistics of a flat buffer, one row per row of the parameter table, without the padding rows.
void print_table(std::ostream& out, const GPT2Config& config, const float* values) {
    print_heading(out, 9);
    for (const Parameter& p : ParameterTable(config).rows) {
        std::vector<int64_t> shape = p.shape;
        if (p.name == "wte") shape[0] = config.vocab;
        int64_t count = p.copies;
        for (const int64_t n : shape) count *= n;
        if (p.per_layer) shape.insert(shape.begin(), p.copies);
        print_row(out, 9, p.name, shape_text(shape), values + p.at(), count);
    }
}

void print_model(std::ostream& out, const std::string& model) {
    const GPT2Config c = read_model_config(model);
    const int64_t padded = ParameterTable(c).size, padding = (c.padded_vocab() - c.vocab) * c.channels;
    out << "  layers " << c.layers << ", heads " << c.heads << ", channels " << c.channels << ", context " << c.context
        << ", vocabulary " << c.vocab << " (padded to " << c.padded_vocab() << ")\n"
        << "  parameters " << grouped(padded - padding) << " (" << grouped(padded) << " with the padding)\n";
    const auto parameters = std::make_unique_for_overwrite<float[]>(padded);
    read_model(model, c, parameters.get());
    print_table(out, c, parameters.get());
}

void print_trainer_state(std::ostream& out, const std::string& checkpoint) {
    const TrainerState state = read_trainer_state(checkpoint);
    out << "  step " << state.step << ", " << format("%.1f s of training", state.seconds);
    if (state.best_val_loss != 0) out << format(", best validation loss %.6f", state.best_val_loss);
    out << '\n';
    const auto options = nlohmann::json::parse(state.options);
    for (const auto& [name, value] : options.items()) {
        const auto path = path_of_json(value);
        out << "  option " << one_line(name) << " = " << (path ? one_line(*path) : json_text(value)) << '\n';
    }
}

void print_tokenizer(std::ostream& out, const Tokenizer& tokenizer) {
    out << "  tokenizer " << tokenizer.name() << ", " << grouped(tokenizer.vocab()) << " tokens, end of text ";
    if (tokenizer.end_of_text() >= 0)
        out << tokenizer.end_of_text() << '\n';
    else
        out << "none\n";
}

void print_directory(std::ostream& out, const std::string& path) {
    const std::string model = find_model(path);
    const bool checkpoint = path_exists(model + "/trainer_state.json");
    if (model != path) out << path << ": a run; its newest checkpoint is\n";
    out << model << (checkpoint ? ": a checkpoint\n" : ": a Hugging Face GPT-2 model\n");
    if (checkpoint) print_trainer_state(out, model);
    if (const auto tokenizer = read_model_tokenizer(model))
        print_tokenizer(out, *tokenizer);
    else
        out << "  tokenizer none\n";
    print_model(out, model);
}

void print_gguf(std::ostream& out, const std::string& path) {
    out << path << ": a GPT-2 model in GGUF, " << read_gguf_type(path) << '\n';
    if (const auto tokenizer = read_model_tokenizer(path))
        print_tokenizer(out, *tokenizer);
    else
        out << "  tokenizer none\n";
    print_model(out, path);
}

void print_safetensors(std::ostream& out, const std::string& path) {
    const SafetensorsFile file(path);
    out << path << ": safetensors, " << file.entries().size() << " tensors\n";
    int width = 6;
    for (const auto& entry : file.entries()) width = std::max(width, static_cast<int>(one_line(entry.name).size()));
    print_heading(out, width);
    std::vector<float> values;
    for (const auto& entry : file.entries()) {
        const bool known = entry.dtype != DType::other;
        const std::string shape = (known ? entry.dtype_name : one_line(entry.dtype_name)) + shape_text(entry.shape);
        if (entry.dtype == DType::F32 || entry.dtype == DType::F16 || entry.dtype == DType::BF16 ||
            entry.dtype == DType::F64) {
            values.resize(entry.elements());
            file.read(entry, values.data());
            print_row(out, width, one_line(entry.name), shape, values.data(), entry.elements());
        } else {
            out << format("  %-*s  %s\n", width, one_line(entry.name).c_str(), shape.c_str());
        }
    }
}

void print_shard(std::ostream& out, const Shard& shard) {
    out << shard.path()
        << (shard.has_header() ? ": an llm.c token shard, "
                               : ": no header; as token ids alone (nanoGPT's prepare.py), ")
        << grouped(shard.size()) << " tokens";
    if (shard.size() > 0)
        out << ", largest id " << shard.with_ids([](auto ids) { return uint32_t{std::ranges::max(ids)}; });
    out << "\n  first ids";
    for (int64_t i = 0; i < std::min<int64_t>(shard.size(), 16); i++) out << ' ' << shard[i];
    out << '\n';
}

int32_t magic_of(const MappedFile& file) {
    int32_t magic = 0;
    if (file.size() >= 4) std::memcpy(&magic, file.data(), 4);
    return magic;
}

// Prints the shards in a directory without a model, such as OUT/data. Returns false if there are none.
bool print_shards(std::ostream& out, const std::string& path) {
    if (path_exists(path + "/config.json") || !list_checkpoints(path).empty()) return false;
    std::vector<std::string> shards;
    for (const auto& item : fs::directory_iterator(path)) {
        const std::string name = item.path().string();
        if (name.ends_with(".bin") && llmc_kind(magic_of(MappedFile(name))) == "an llm.c token shard")
            shards.push_back(name);
    }
    std::sort(shards.begin(), shards.end());
    for (const std::string& shard : shards) print_shard(out, Shard(shard));
    return !shards.empty();
}

// A state does not contain its vocabulary size, which is read from the model beside it (as llm.c names the two files).
void print_state(std::ostream& out, const std::string& path, const MappedFile& file) {
    if (file.size() < 1024)
        bad_input(path, "size", std::to_string(file.size()) + " bytes", "a header of 1024 bytes", "write it again");
    int32_t header[4];
    std::memcpy(header, file.data(), sizeof(header));
    out << path << ": an llm.c debug state, version " << header[1] << ", B " << header[2] << ", T " << header[3]
        << '\n';
    const std::string suffix = "_debug_state.bin";
    const std::string model = path.ends_with(suffix) ? path.substr(0, path.size() - suffix.size()) + ".bin" : "";
    if (!path_exists(model)) return;
    const GPT2Config config = read_llmc_model_config(model);
    const LlmcState state = read_llmc_state(path, config);
    out << format("  loss %.6f; gradients, by the shapes of %s:\n", state.loss, model.c_str());
    print_table(out, config, state.gradients.data());
}

void print_hellaswag(std::ostream& out, const std::string& path, const MappedFile& file) {
    if (file.size() < 1024)
        bad_input(path, "size", std::to_string(file.size()) + " bytes", "a header of 1024 bytes", "write it again");
    int32_t header[4];
    std::memcpy(header, file.data(), sizeof(header));
    out << path << ": an llm.c HellaSwag file, " << header[2] << " examples, the longest of " << header[3]
        << " bytes\n";
}

// The first line of a file of JSON lines, or null if it is no JSON object.
nlohmann::json first_line(const MappedFile& file) {
    const std::string_view text(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
    const nlohmann::json line = nlohmann::json::parse(text.substr(0, text.find('\n')), nullptr, false);
    return line.is_object() ? line : nlohmann::json();
}

void print_examples(std::ostream& out, const std::string& path) {
    const ExampleSet set = read_examples(path, *load_tokenizer("byte"), 256);
    size_t endings = 0;
    for (const Example& example : set.examples) endings += example.endings.size();
    out << path << ": multiple choice for --choices, " << grouped(std::ssize(set.examples)) << " examples with "
        << grouped(static_cast<int64_t>(endings)) << " endings\n";
}

void print_log(std::ostream& out, const std::string& path) {
    const std::vector<LogEntry> log = read_log(path);
    out << path << ": a training log, " << log.size() << " lines";
    if (!log.empty()) out << ", steps " << log.front().step << " to " << log.back().step;
    out << '\n';
    for (const char* split : {"train", "val"}) {
        const LogEntry *last = nullptr, *best = nullptr;
        for (const LogEntry& e : log) {
            if (e.split != split) continue;
            last = &e;
            if (!best || e.loss < best->loss || std::isnan(best->loss)) best = &e;
        }
        if (!last) continue;
        out << format("  %s loss: last %.6f, best %.6f at step %lld\n", split, last->loss, best->loss,
                      static_cast<long long>(best->step));
    }
}

void print_text(std::ostream& out, const std::string& path, const MappedFile& file) {
    const std::string_view text(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
    const bool binary = text.substr(0, 1 << 16).find('\0') != std::string_view::npos;
    const std::string kind = kind_of(text).name;
    out << path
        << (!kind.empty() ? ": " + kind + ", "
            : binary      ? ": no format that is known here, "
                          : ": text, ")
        << grouped(file.size()) << " bytes";
    if (!binary && kind.empty()) out << ", " << grouped(std::count(text.begin(), text.end(), '\n')) << " lines";
    out << '\n';
}

// A compressed text, which is read in pieces.
void print_packed_text(std::ostream& out, const std::string& path, const MappedFile& file) {
    TextPieces pieces(file);
    int64_t bytes = 0, lines = 0;
    for (std::string_view piece = pieces.next(); !piece.empty(); piece = pieces.next()) {
        bytes += std::ssize(piece);
        lines += std::count(piece.begin(), piece.end(), '\n');
    }
    out << path << (is_json_lines(path) ? ": JSON lines, " : ": text, ") << grouped(file.size()) << " bytes, unpacked "
        << grouped(bytes) << " bytes, " << grouped(lines) << " lines\n";
}

}  // namespace

void print_info(const std::string& path, std::ostream& out) {
    if (is_directory(path)) return print_shards(out, path) ? void() : print_directory(out, path);
    const std::string name = fs::path(path).filename().string();
    if (name.ends_with(".safetensors")) return print_safetensors(out, path);
    if (name == "trainer_state.json") {
        out << path << ": a checkpoint's training state\n";
        const std::string parent = fs::path(path).parent_path().string();
        return print_trainer_state(out, parent.empty() ? "." : parent);
    }
    if (is_gguf(path)) return print_gguf(out, path);
    const MappedFile file(path);
    if (unpacked_name(name) != name && is_text_name(name)) return print_packed_text(out, path, file);
    if (name.ends_with(".jsonl")) {
        const nlohmann::json line = first_line(file);
        if (line.contains("step") || name == "log.jsonl") return print_log(out, path);
        if (line.contains("ctx")) return print_examples(out, path);
    }
    const std::string kind = llmc_kind(magic_of(file));
    if (kind == "an llm.c model") {
        const int version = read_llmc_model_version(path);
        out << path << ": an llm.c model, version " << version << (version == 3 ? " (fp32)\n" : " (bf16)\n");
        return print_model(out, path);
    }
    if (kind == "an llm.c debug state") return print_state(out, path, file);
    if (kind == "an llm.c token shard") return print_shard(out, Shard(path));
    if (name.ends_with(".bin") && is_headerless(file)) return print_shard(out, Shard::headerless(path));
    if (kind == "an llm.c HellaSwag file") return print_hellaswag(out, path, file);
    if (kind == "an llm.c tokenizer") {
        out << path << ": an llm.c tokenizer\n";
        return print_tokenizer(out, *load_tokenizer(path));
    }
    if (kind.empty()) return print_text(out, path, file);
    out << path << ": " << kind << ", " << grouped(file.size()) << " bytes\n";
}

bool verify_files(const std::string& path, std::ostream& out) {
    const fs::path file(path);
    const std::string parent = file.has_parent_path() ? file.parent_path().string() : ".",
                      only = is_directory(path) ? "" : file.filename().string();
    bool intact = true, any = false;
    const auto list = [&](const std::string& directory, const char* kind, const std::vector<FileCheck>& checks) {
        if (only.empty() && !checks.empty()) out << directory << ": " << kind << '\n';
        for (const auto& [name, trouble] : checks) {
            if (!only.empty() && name != only) continue;
            out << format("  %-24s %s\n", one_line(name).c_str(),
                          trouble.empty() ? "ok" : ("DAMAGED: " + trouble).c_str());
            intact = intact && trouble.empty(), any = true;
        }
    };
    const std::string directory = only.empty() ? path : parent;
    std::vector<std::string> checkpoints;
    if (path_exists(directory + "/trainer_state.json"))
        checkpoints = {directory};
    else if (only.empty())
        checkpoints = list_checkpoints(path);
    list(directory, "a run", check_options(directory));
    for (const std::string& checkpoint : checkpoints) list(checkpoint, "a checkpoint", check_files(checkpoint));
    for (const std::string& cache : {directory, directory + "/data"})
        if (only.empty() || cache == directory) list(cache, "tokens made from text", check_token_cache(cache));
    if (!any) out << path << ": no checksums are kept for it; all of it is read\n";
    return intact;
}

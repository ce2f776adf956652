#include "program/commands.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <numbers>
#include <span>

#include "program/choices.h"
#include "program/device_model.h"
#include "program/evaluation.h"
#include "io/model/checkpoint.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"
#include "io/data/batch_sampler.h"
#include "io/data/text_cache.h"
#include "io/text/text_file.h"
#include "program/text_progress.h"
#include "io/text/tokenizer.h"
#include "program/run_messages.h"
#include "program/generation.h"
#include "program/interactive.h"
#include "program/learn_tokenizer.h"
#include "program/progress.h"
#include "program/stop_signals.h"
#include "program/text_stream.h"

namespace {

// Prints to standard error, so that standard output contains only the result.
void print_notes(const std::vector<std::string>& notes) {
    for (const std::string& note : notes)
        std::fprintf(stderr, "%s: %s\n", program_name().c_str(), without_controls(note).c_str());
}

// If --from names no model, as before the first training run, the error says how to get one.
void check_from(const std::string& from) {
    std::error_code error;
    const std::string remedy = "train a model first (" + program_name() + " --data FILE --out " + shell_word(from) +
                               "), or name one with --from";
    if (!std::filesystem::exists(from, error) && !error)
        throw InputError(from + ": No such file or directory; " + remedy);
    const bool run = std::filesystem::exists(from + "/options.json", error);  // written before its first checkpoint
    if (run && !path_exists(from + "/config.json") && !find_latest_checkpoint(from))
        throw InputError(from +
                         ": this run has saved no checkpoint yet; wait until it does (--save-every), continue it "
                         "(" +
                         program_name() + " --resume --out " + shell_word(from) + "), or name a model with --from");
}

// A model for inference, and its tokenizer.
struct Loaded {
    std::unique_ptr<Model> model;
    std::shared_ptr<const Tokenizer> tokenizer;
};
Loaded load(const Options& options, int64_t B, int64_t seq) {
    check_from(options.from);
    const std::string path = find_model(options.from);
    const GPT2Config config = read_model_config(path);
    const TokenizerSettings settings{.special_as_text = options.no_special_tokens};
    const auto tokenizer = tokenizer_for_model(options.tokenizer, path, settings);
    if (const std::string doubt = tokenizer_doubt(options, *tokenizer, config); !doubt.empty()) print_notes({doubt});
    if (seq > config.context)
        throw InputError("--seq: " + std::to_string(seq) + " is more than the model's context " +
                         std::to_string(config.context) + "; give at most " + std::to_string(config.context));
    const int64_t T = seq > 0 ? seq : config.context;
    plan_memory(options, config, B, T, ActivationPolicy::inference,
                options.command == "generate" ? "make --samples smaller" : "make --batch or --seq smaller");
    auto model = make_model(options, config, B, T, ActivationPolicy::inference);
    {
        const Model::HostState host = model->to_fill();
        read_finite_model(path, config, host.parameters);
        model->upload(host);
    }
    return {std::move(model), tokenizer};
}

// Parses ids separated by spaces or commas: "1 2 3".
std::vector<int32_t> parse_ids(const std::string& text) {
    const auto separates = [](char c) { return c == ' ' || c == ','; };
    std::vector<int32_t> ids;
    for (auto at = text.begin(); (at = std::find_if_not(at, text.end(), separates)) != text.end();) {
        const std::string word(at, std::find_if(at, text.end(), separates));
        int32_t id = -1;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
        if (error != std::errc{} || end != word.data() + word.size() || id < 0)
            throw InputError("--prompt-ids: token " + std::to_string(ids.size()) + ": '" + word +
                             "' is not a token id; give whole numbers such as '1 2 3'");
        ids.push_back(id);
        at += std::ssize(word);
    }
    return ids;
}

// The tokens that `generate` continues, from text or from ids.
struct Prompt {
    std::vector<int32_t> ids;
    std::string text;  // the prompt as it is printed
};

// Checks the prompt's ids, as a tokenizer may have more tokens than the model has ids.
void check_prompt(const char* option, const std::vector<int32_t>& ids, const Tokenizer& tokenizer, int64_t vocab) {
    if (ids.empty()) throw InputError(std::string(option) + ": empty; give at least one token, or leave it out");
    const auto bad = std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id >= vocab; });
    if (bad == ids.end()) return;
    const std::string token = *bad < tokenizer.vocab() ? " (" + one_line(tokenizer.token(*bad)) + ")" : "";
    throw InputError(std::string(option) + ": token " + std::to_string(bad - ids.begin()) + ": id " +
                     std::to_string(*bad) + token + " is outside the model's vocabulary of " + std::to_string(vocab) +
                     "; leave it out, or pass the --tokenizer that the model was trained with");
}

// All of a file, or of standard input if it is called "-".
std::string read_text(const std::string& path) {
    if (path != "-") return std::string(TextFile(path).text());
    return {std::istreambuf_iterator<char>(std::cin), {}};
}

Prompt read_prompt(const Options& options, const Tokenizer& tokenizer, int64_t vocab) {
    Prompt prompt;
    if (options.given("prompt-ids")) {
        prompt.ids = parse_ids(options.prompt_ids);
    } else if (options.given("prompt") || options.given("prompt-file") || tokenizer.reads_text()) {
        const char* const option = options.given("prompt-file") ? "--prompt-file" : "--prompt";
        require_text(tokenizer, option, "give token ids with --prompt-ids '1 2 3', or pass --tokenizer");
        prompt.text = options.given("prompt-file") ? read_text(options.prompt_file) : options.prompt;
        prompt.ids = tokenizer.encode(prompt.text);
        if (tokenizer.reads_utf8()) {
            TextCheck check;
            check.add(prompt.text);
            if (const std::string note = check.invalid_utf8_note(); !note.empty())
                print_notes({std::string(option) + ": " + note});
        }
        const AddedTokens& added = tokenizer.added();
        const std::string found = added.note(option, added.count_special(prompt.ids));
        if (!found.empty()) std::fprintf(stderr, "%s\n", found.c_str());  // standard output contains only the text
        check_prompt(option, prompt.ids, tokenizer, vocab);
        return prompt;
    } else if (tokenizer.end_of_text() >= 0) {
        prompt.ids.assign(1, tokenizer.end_of_text());
    } else {
        throw InputError("--prompt-ids: needed, as the model has no tokenizer; give token ids such as '1 2 3'");
    }
    check_prompt("--prompt-ids", prompt.ids, tokenizer, vocab);
    prompt.text = tokenizer.decode(prompt.ids);
    return prompt;
}

Sampling sampling_of(const Options& options, int64_t ids) {
    return {.temperature = options.temperature,
            .top_k = options.top_k,
            .top_p = options.top_p,
            .min_p = options.min_p,
            .repetition_penalty = options.repetition_penalty,
            .ids = ids};
}

// The texts that `generate` writes. One is printed as it comes, several one after the other at the end.
class Samples {
public:
    Samples(const Options& options, const std::string& prompt)
        : streams_(static_cast<size_t>(options.samples), TextStream(options.stop)), texts_(streams_.size(), prompt) {
        if (streams_.size() == 1) print(prompt);
    }
    // Adds the bytes of a sample's next token. Returns false if the sample ends there.
    bool add(int64_t sample, std::string_view bytes) {
        TextStream& stream = streams_[static_cast<size_t>(sample)];
        put(sample, stream.add(bytes));
        return !stream.stopped();
    }
    void finish() {
        for (int64_t i = 0; i < std::ssize(streams_); ++i) put(i, streams_[static_cast<size_t>(i)].rest());
        if (streams_.size() == 1) return print("\n");
        for (size_t i = 0; i < texts_.size(); ++i)
            print("--- sample " + std::to_string(i + 1) + "\n" + texts_[i] + "\n");
    }

private:
    void put(int64_t sample, const std::string& text) {
        if (streams_.size() == 1)
            print(text);
        else
            texts_[static_cast<size_t>(sample)] += text;
    }
    static void print(const std::string& text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
    }
    std::vector<TextStream> streams_;
    std::vector<std::string> texts_;
};

// Holds the tokens of eval's text while eval runs.
struct TemporaryDirectory {
    std::string path = (std::filesystem::temp_directory_path() / "train_gpt2-XXXXXX").string();
    TemporaryDirectory() {
        if (!mkdtemp(path.data())) throw InputError(path + ": mkdir failed; set TMPDIR to a directory with free space");
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
};

}  // namespace

int run_generate(const Options& options) {
    const Loaded loaded = load(options, 1, 0);
    const Tokenizer& tokenizer = *loaded.tokenizer;
    if (options.interactive) require_text(tokenizer, "--interactive", "pass --tokenizer");
    const Prompt prompt = read_prompt(options, tokenizer, loaded.model->config.vocab);
    if (std::ssize(prompt.ids) > loaded.model->config.context)
        print_notes({"the prompt has " + std::to_string(prompt.ids.size()) + " tokens; the model sees the last " +
                     std::to_string(loaded.model->config.context) + ", its context"});
    const Random random{static_cast<uint64_t>(options.seed), Purpose::sampling};
    Generator generator(*loaded.model, options.samples, sampling_of(options, tokenizer.vocab()), random);
    const auto given = [&](const char* option) { return options.given(option); };
    if (!options.interactive || given("prompt") || given("prompt-file") || given("prompt-ids"))
        generator.append(prompt.ids);
    if (options.interactive)
        return run_interactive(options, generator, tokenizer, [&](const std::string& text) {
            const std::vector<int32_t> ids = tokenizer.encode(text);
            check_prompt("--interactive", ids, tokenizer, loaded.model->config.vocab);
            return ids;
        });
    stop_signals::catch_stop(program_name(), "token");
    Samples samples(options, prompt.text);
    int64_t tokens = 0;
    double start = 0;  // when the prompt has been read
    generator.generate(options.tokens, [&](int64_t sample, int32_t id) {
        if (tokens == 0) start = seconds_now();
        ++tokens;
        const bool ends = id == tokenizer.end_of_text() && !options.ignore_end;
        return samples.add(sample, ends ? "" : tokenizer.token(id)) && !ends && !stop_signals::stop_asked;
    });
    samples.finish();
    const double seconds = seconds_now() - start;
    if (tokens > options.samples && !std::ferror(stdout))
        std::fprintf(stderr, "%" PRId64 " tokens, %.1f tokens/s\n", tokens,
                     static_cast<double>(tokens - options.samples) / seconds);
    return stop_signals::stop_asked ? 128 + stop_signals::stop_asked : 0;
}

namespace {

void eval_loss(const Options& options, const Loaded& loaded, int64_t seq) {
    if (options.stride > seq)
        throw InputError("--stride: " + std::to_string(options.stride) + " is more than the window of " +
                         std::to_string(seq) + " tokens, so some tokens would be left out; give at most " +
                         std::to_string(seq));
    const TemporaryDirectory cache;
    const Dataset data = [&] {
        TextProgress progress;
        return open_dataset(options.data_names(), *loaded.tokenizer, cache.path, loaded.model->config.vocab,
                            progress.reader());
    }();
    print_notes(data.notes);
    print_special_tokens(data, *loaded.tokenizer);
    const WindowReader reader(data, seq, options.stride);
    const int64_t windows = reader.windows();
    int64_t predictions = 0, bytes = 0;
    for (int64_t w = 0; w < windows; ++w) predictions += reader.length(w) - reader.repeated(w);
    Evaluation result;
    {
        EvaluationProgress progress(predictions);
        result = *evaluate_windows(*loaded.model, reader, spread(windows, windows), options.batch, seq,
                                   [&](const Evaluation& so_far, std::span<const int32_t> targets) {
                                       progress.show(so_far);
                                       bytes += bytes_of(targets, *loaded.tokenizer);
                                       return true;
                                   });
    }
    std::printf("loss %.6f nats per token, perplexity %.4f", result.loss(), std::exp(result.loss()));
    if (bytes > 0) std::printf(", %.6f bits per byte", result.nats / std::numbers::ln2 / static_cast<double>(bytes));
    std::printf("\n");
}

void eval_choices(const Options& options, const Loaded& loaded, int64_t seq) {
    const ExampleSet set = read_examples(options.choices, *loaded.tokenizer, loaded.model->config.vocab, options.limit);
    if (const std::string note = long_examples_note(set, seq); !note.empty()) print_notes({note});
    ChoicesResult result;
    {
        EvaluationProgress progress(tokens_to_evaluate(set, seq));
        const auto show = [&](int64_t tokens) {
            progress.show(tokens);
            return true;
        };
        result = *evaluate_choices(*loaded.model, set, options.batch, seq, show);
    }
    std::printf("%s\n", result.text().c_str());
}

}  // namespace

void run_eval(const Options& options) {
    const Loaded loaded = load(options, options.batch, options.seq);
    const int64_t seq = options.seq > 0 ? options.seq : loaded.model->config.context;
    if (!options.data.empty()) eval_loss(options, loaded, seq);
    if (!options.choices.empty()) eval_choices(options, loaded, seq);
}

void run_tokenize(const Options& options) {
    if (options.train_tokenizer) return run_learn_tokenizer(options);
    const auto tokenizer = load_tokenizer(options.tokenizer, {.special_as_text = options.no_special_tokens});
    if (std::filesystem::exists(options.out_path))
        throw InputError(options.out_path + ": exists already; choose another name");
    const DataFiles files = find_files({{options.in_path}, options.field});
    if (files.shards) throw InputError(options.in_path + ": these are token ids already; give a text");
    print_notes(files.notes);
    TokenizedTexts made;
    {
        TextProgress progress;
        const Survey surveyed = survey(files.files, *tokenizer, progress.reader());
        print_notes(surveyed.notes);
        made = tokenize_to_shards(files.files, surveyed, *tokenizer, options.out_path, {.shard_tokens = UINT32_MAX},
                                  TextPart::all, progress.reader());
    }
    const Shard shard(options.out_path);
    std::printf("%s: %" PRId64 " tokens (--tokenizer %s)\n", options.out_path.c_str(), shard.size(),
                options.tokenizer.c_str());
    const AddedTokens& added = tokenizer->added();
    AddedTokens::Counts special = shard.with_ids([&](auto ids) { return added.count_special(ids); });
    if (made.separators > 0 && (special[tokenizer->end_of_text()] -= made.separators) == 0)
        special.erase(tokenizer->end_of_text());
    const std::string found = added.note(options.in_path, special);
    if (!found.empty()) std::printf("%s\n", found.c_str());
}

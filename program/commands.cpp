#include "program/commands.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "program/device_model.h"
#include "program/evaluation.h"
#include "io/checkpoint.h"
#include "io/error.h"
#include "io/file.h"
#include "io/text_cache.h"
#include "io/text_file.h"
#include "io/tokenizer.h"
#include "program/run_messages.h"
#include "program/sampler.h"

namespace {

// Where --from names no model, as before the first training run: how to come by one.
void check_from(const std::string& from) {
    std::error_code error;
    const std::string remedy = "train a model first (" + program_name() + " --data FILE --out " + shell_word(from) +
                               "), or name one with --from";
    if (!std::filesystem::exists(from, error) && !error)
        throw InputError(from + ": found No such file or directory, expected a trained model; " + remedy);
    const bool run = std::filesystem::exists(from + "/options.json", error);  // and before its first checkpoint
    if (run && !path_exists(from + "/config.json") && !find_latest_checkpoint(from))
        throw InputError(from +
                         ": this run has saved no checkpoint yet; wait until it does (--save-every), go on with "
                         "it (" +
                         program_name() + " --resume --out " + shell_word(from) + "), or name a model with --from");
}

// A model to look at, not to train, and its tokenizer.
struct Loaded {
    std::unique_ptr<Model> model;
    std::shared_ptr<const Tokenizer> tokenizer;
};
Loaded load(const Options& options, int64_t B, int64_t seq) {
    check_from(options.from);
    const std::string path = find_model(options.from);
    const GPT2Config config = read_model_config(path);
    const TokenizerSettings settings{.special_as_text = options.no_special_tokens};
    const auto tokenizer =
        options.tokenizer.empty() ? read_model_tokenizer(path, settings) : load_tokenizer(options.tokenizer, settings);
    if (!tokenizer || tokenizer->vocab() != config.vocab)
        bad_input(path, "tokenizer", tokenizer ? std::to_string(tokenizer->vocab()) + " tokens" : "none",
                  std::to_string(config.vocab) + " tokens as in the model",
                  "pass the --tokenizer that the model was trained with");
    if (seq > config.context)
        bad_input("--seq", "tokens", std::to_string(seq),
                  "at most the model's context " + std::to_string(config.context), "make it smaller");
    const int64_t T = seq > 0 ? seq : config.context;
    plan_memory(options, config, B, T, Keep::inference, "make --batch or --seq smaller");
    auto model = make_model(options, config, B, T, Keep::inference);
    {
        const Model::HostState host = model->download();
        read_finite_model(path, config, host.parameters);
        model->upload(host);
    }
    return {std::move(model), tokenizer};
}

// Where eval's text lies tokenised while it runs.
struct TemporaryDirectory {
    std::string path = (std::filesystem::temp_directory_path() / "train_gpt2-XXXXXX").string();
    TemporaryDirectory() {
        if (!mkdtemp(path.data())) throw InputError(path + ": cannot be made; set TMPDIR to a directory with space");
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
};

// On standard error, so that standard output is the result alone.
void print_notes(const std::vector<std::string>& notes) {
    for (const std::string& note : notes)
        std::fprintf(stderr, "%s: %s\n", program_name().c_str(), without_controls(note).c_str());
}

}  // namespace

void run_generate(const Options& options) {
    const Loaded loaded = load(options, 1, 0);
    const std::vector<int32_t> prompt = loaded.tokenizer->encode(options.prompt);
    if (prompt.empty())
        throw InputError(
            "--prompt: found an empty text, expected at least one token; leave it out to begin with a line break");
    if (loaded.tokenizer->reads_utf8())
        if (const std::string note = invalid_utf8_note(options.prompt); !note.empty())
            print_notes({"--prompt: " + note});
    const AddedTokens& added = loaded.tokenizer->added();
    const std::string found = added.note("--prompt", added.count_special(prompt.data(), std::ssize(prompt)));
    if (!found.empty()) std::fprintf(stderr, "%s\n", found.c_str());  // standard output is the text alone
    const Sampling sampling{.temperature = options.temperature, .top_k = options.top_k};
    std::fwrite(options.prompt.data(), 1, options.prompt.size(), stdout);
    generate(*loaded.model, prompt, options.tokens, sampling, static_cast<uint64_t>(options.seed), [&](int32_t id) {
        const std::string_view bytes = loaded.tokenizer->token(id);
        std::fwrite(bytes.data(), 1, bytes.size(), stdout);
        std::fflush(stdout);
    });
    std::printf("\n");
}

void run_eval(const Options& options) {
    const Loaded loaded = load(options, options.batch, options.seq);
    const int64_t seq = options.seq > 0 ? options.seq : loaded.model->config.context;
    const TemporaryDirectory cache;
    const Dataset data = open_dataset(options.data, *loaded.tokenizer, cache.path);
    print_notes(data.notes);
    print_special_tokens(data, *loaded.tokenizer);
    const WindowReader reader(data, seq);
    std::printf("loss %.6f\n",
                mean_loss(*loaded.model, reader, spread(reader.windows(), reader.windows()), options.batch, seq));
}

void run_tokenize(const Options& options) {
    const auto tokenizer = load_tokenizer(options.tokenizer, {.special_as_text = options.no_special_tokens});
    if (std::filesystem::exists(options.out_path))
        throw InputError(options.out_path + ": exists already; choose another name");
    const TextFile file(options.in_path);
    print_notes(file.notes(*tokenizer));
    tokenize_to_shards(file.text(), *tokenizer, options.out_path, {.shard_tokens = UINT32_MAX});
    const Shard shard(options.out_path);
    std::printf("%s: %" PRId64 " tokens (--tokenizer %s)\n", options.out_path.c_str(), shard.size(),
                options.tokenizer.c_str());
    const AddedTokens& added = tokenizer->added();
    const std::string found = added.note(options.in_path, added.count_special(shard.tokens(), shard.size()));
    if (!found.empty()) std::printf("%s\n", found.c_str());
}

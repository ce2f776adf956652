#include "program/learn_tokenizer.h"

#include <cinttypes>
#include <cstdio>

#include "io/data/dataset.h"
#include "io/data/text_cache.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"
#include "io/text/bpe_trainer.h"
#include "io/text/tokenizer_files.h"
#include "program/text_progress.h"
#include "program/time_plan.h"

namespace {

constexpr const char* title = "learning a tokenizer: ";

// There are fewer than `size` tokens if the text cannot teach as many. `source` is the text, for messages.
Vocabulary learn(const TextCounts& text, int64_t size, bool superwords, const std::string& source,
                 TextProgress& progress) {
    if (text.words.size() == 0)
        throw InputError(source + ": contains no text; a tokenizer is learned from a longer one");
    const auto show = [&](int64_t tokens) { progress.show("merges", tokens, size); };
    return superwords ? train_superwords(text.words, text.lines, size, show) : train_byte_pairs(text.words, size, show);
}

// `option` says how the size is given: "--vocab ", "--tokenizer bpe:" or "--tokenizer superbpe:".
void check_vocabulary(const Vocabulary& vocabulary, int64_t size, const std::string& source,
                      const std::string& option) {
    if (const int64_t found = std::ssize(vocabulary.tokens); found < size)
        throw InputError(source + ": all of its words are tokens with a vocabulary of " + std::to_string(found) +
                         ", so that " + option + std::to_string(size) + " is too many; give " + option +
                         std::to_string(found) + " at most, or a longer text");
    if (std::ssize(hugging_face_json(vocabulary)) > max_json_bytes)
        throw InputError(source + ": has words so long that the tokenizer's file would have more than " +
                         std::to_string(max_json_bytes >> 20) +
                         " MiB; break them by spaces or lines, or give a smaller " + option + "N");
}

}  // namespace

void run_learn_tokenizer(const Options& options) {
    if (path_exists(options.out_path)) throw InputError(options.out_path + ": exists already; choose another name");
    const Texts texts = find_texts({{options.in_path}, options.field});
    const AddedTokens added = added_tokens_to_train(options.no_special_tokens);
    TextCounts text;
    Vocabulary vocabulary;
    {
        TextProgress progress(title);
        text = count_text(texts, TextPart::all, added, options.superwords, progress.reader());
        vocabulary = learn(text, options.vocab, options.superwords, options.in_path, progress);
        check_vocabulary(vocabulary, options.vocab, options.in_path, "--vocab ");
    }
    write_file_atomically(options.out_path, hugging_face_json(vocabulary));
    const auto tokenizer = make_tokenizer(vocabulary, options.out_path, options.no_special_tokens);
    for (const std::string& note : survey(texts, *tokenizer).notes) std::fprintf(stderr, "%s\n", note.c_str());
    std::printf("%s: %zu tokens, learned from the %" PRId64 " distinct words of %s; use it with --tokenizer %s\n",
                options.out_path.c_str(), vocabulary.tokens.size(), text.words.size(), options.in_path.c_str(),
                options.out_path.c_str());
}

std::shared_ptr<const Tokenizer> learn_tokenizer(Options& options) {
    const std::string source = options.data_names().text();
    int64_t size = trained_vocabulary_size(options.tokenizer);
    const bool superwords = is_superword_spec(options.tokenizer);
    const std::string kind = superwords ? "superbpe:" : "bpe:";
    Vocabulary vocabulary;
    {
        TextProgress progress(title);
        const AddedTokens added = added_tokens_to_train(options.no_special_tokens);
        const TextCounts text =
            count_training_text(options.data_names(), options.val_names(), added, superwords, progress.reader());
        vocabulary = learn(text, size, superwords, source, progress);
    }
    const int64_t found = std::ssize(vocabulary.tokens);
    if (found < size && seconds_to_train(options) > 0 && !options.given("tokenizer")) {
        size = found;
        options.choose({{"tokenizer", found < smallest_useful_vocabulary ? "byte" : kind + std::to_string(found)}});
        std::printf("time: all of the text's words are tokens with a vocabulary of %" PRId64
                    ", so --tokenizer is now %s\n",
                    found, options.tokenizer.c_str());
        if (found < smallest_useful_vocabulary)
            return load_tokenizer("byte", {.special_as_text = options.no_special_tokens});
    }
    check_vocabulary(vocabulary, size, source, "--tokenizer " + kind);
    return make_tokenizer(vocabulary, options.tokenizer, options.no_special_tokens);
}

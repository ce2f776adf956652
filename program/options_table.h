// The options, each in one row: name, member, range or choices, default, unit, help. Only options.cpp reads it.
#pragma once

#include <array>
#include <iterator>
#include <variant>

#include "program/options.h"

namespace options_table {

struct Int {
    int64_t Options::*member;
    int64_t low, high;
};
struct Real {
    double Options::*member;
    double low, high;
};
struct Flag {
    bool Options::*member;
};
struct Text {
    std::string Options::*member;
    std::vector<std::string> choices = {};  // none: any text
};

enum : unsigned {
    // the commands that have the option
    train = 1,
    generate = 2,
    eval = 4,
    convert = 8,
    tokenize = 16,
    info = 32,

    saved = 64,      // defines a training run: kept with its checkpoints
    fixed = 128,     // and cannot change at --resume
    shape = 256,     // and is what --model stands for
    argument = 512,  // no dashes; must be there

    cpu_only = 1024,  // of one of the two programs
    gpu_only = 2048
};

struct Command {
    const char* name;
    unsigned bit;
    const char* help;
};
inline constexpr Command commands[] = {
    {"train", train, "Trains a GPT-2 on text or on llm.c shards. This is what happens when no command is named."},
    {"generate", generate, "Samples text from a trained model."},
    {"eval", eval, "Prints a model's mean loss over all of the data."},
    {"convert", convert, "Hugging Face or checkpoint directory to llm.c .bin, and back."},
    {"tokenize", tokenize, "Text to a shard of tokens as llm.c has them: bytes, unless --tokenizer is given."},
    {"info", info, "Says what a file or directory is, its shapes and numbers."},
};

// Defaults that go with the model. "init" is for --init: fine-tuning rather than training from nothing.
inline constexpr const char* preset_columns[] = {"batch", "seq", "steps", "warmup", "lr", "beta2", "optimizer"};
struct Preset {
    const char* name;
    std::array<const char*, std::size(preset_columns)> values;
};
inline constexpr Preset presets[] = {
    {"tiny", {"16", "128", "3000", "100", "0.003", "0.99", "muon"}},
    {"d12", {"4", "1024", "20000", "700", "0.0006", "0.95", "adamw"}},
    {"d24", {"4", "1024", "20000", "700", "0.0003", "0.95", "adamw"}},
    {"d36", {"4", "1024", "20000", "700", "0.00025", "0.95", "adamw"}},
    {"d48", {"4", "1024", "20000", "700", "0.0002", "0.95", "adamw"}},
    {"init", {"4", "256", "500", "20", "0.00005", "0.95", "adamw"}},
};

struct Row {
    const char* name;
    std::variant<Int, Real, Flag, Text> value;
    const char* initial;  // null: the preset's, or nothing
    const char* unit;
    const char* help;
    unsigned traits = 0;
};
struct Group {
    const char* title;
    unsigned commands;
    std::vector<Row> rows;
};

using O = Options;
inline constexpr int64_t million = 1'000'000, trillion = million * million;

inline const std::vector<Group> groups = {
    {"Data",
     train,
     {
         {"data", Text{&O::data}, "data/tinyshakespeare.txt", "PATH",
          "a text file, or llm.c shards: 'shards/*_train_*.bin' in quotes", saved},
         {"val", Text{&O::val}, nullptr, "PATH", "likewise, held out for validation [a tenth of --data]", saved},
     }},
    {"Data",
     train | tokenize,
     {
         {"tokenizer", Text{&O::tokenizer}, "byte", "byte|gpt2|none|FILE",
          "how text becomes tokens; none: --data are shards of any ids", saved | fixed},
         {"no-special-tokens", Flag{&O::no_special_tokens}, nullptr, nullptr,
          "read the names of special tokens in a text, such as <|endoftext|>, as ordinary text", saved | fixed},
     }},
    {"Model",
     train,
     {
         {"model", Text{&O::model, {"tiny", "d12", "d24", "d36", "d48"}}, "tiny", nullptr,
          "a shape and the defaults that go with it; d12 is GPT-2 124M"},
         {"layers", Int{&O::layers, 1, 1000}, nullptr, "N", "transformer blocks", saved | fixed | shape},
         {"heads", Int{&O::heads, 1, 1000}, nullptr, "N", "attention heads", saved | fixed | shape},
         {"channels", Int{&O::channels, 1, 100'000}, nullptr, "N", "width, a multiple of --heads",
          saved | fixed | shape},
         {"context", Int{&O::context, 1, million}, nullptr, "TOKENS", "longest sequence that the model can see",
          saved | fixed | shape},
         {"vocab", Int{&O::vocab, 0, 65536}, "0", "IDS",
          "rows of a new model's embedding; those that the tokenizer lacks are never drawn; 0: one for each of its "
          "tokens",
          saved | fixed},
         {"init", Text{&O::init}, nullptr, "PATH",
          "start from this model: llm.c .bin, Hugging Face directory, checkpoint", saved},
     }},
    {"Training",
     train,
     {
         {"batch", Int{&O::batch, 1, 65536}, nullptr, "ROWS", "sequences computed at a time", saved},
         {"seq", Int{&O::seq, 1, million}, nullptr, "TOKENS", "length of each, at most --context", saved},
         {"total-batch", Int{&O::total_batch, 1, trillion}, nullptr, "TOKENS",
          "tokens an update: gradients add up over batches [batch * seq]", saved},
         {"steps", Int{&O::steps, 1, trillion}, nullptr, "UPDATES", "length of training", saved},
         {"lr", Real{&O::lr, 0, 10}, nullptr, "RATE", "highest learning rate", saved},
         {"warmup", Int{&O::warmup, 0, trillion}, nullptr, "UPDATES",
          "the learning rate rises to --lr over so many; a tenth of --steps at most", saved},
         {"schedule", Text{&O::schedule, {"cosine", "linear", "constant", "wsd"}}, "cosine", nullptr,
          "what the learning rate does then", saved},
         {"final-lr-frac", Real{&O::final_lr_frac, 0, 1}, "0.1", "FRACTION", "of --lr, where the learning rate ends",
          saved},
         {"optimizer", Text{&O::optimizer, {"adamw", "muon"}}, nullptr, nullptr,
          "muon: for the blocks' matrices, adamw for the rest", saved | fixed},
         {"muon-lr", Real{&O::muon_lr, 0, 10}, "0.02", "RATE", "Muon's highest learning rate", saved},
         {"weight-decay", Real{&O::weight_decay, 0, 100}, "0.1", "RATE",
          "pull of matrices to zero, times the learning rate", saved},
         {"beta1", Real{&O::beta1, 0, 0.999999}, "0.9", "FRACTION", "AdamW's memory of the gradient", saved},
         {"beta2", Real{&O::beta2, 0, 0.999999}, nullptr, "FRACTION", "AdamW's memory of its square", saved},
         {"clip", Real{&O::clip, 0, 1e9}, "1", "NORM", "longest gradient, longer ones are scaled down to it; 0: any",
          saved},
         {"skip-outliers", Real{&O::skip_outliers, 0, 1e9}, "0", "Z",
          "leave out updates whose loss or gradient is Z deviations above the last 128; 0: none", saved},
     }},
    {"Evaluation and samples",
     train,
     {
         {"eval-every", Int{&O::eval_every, 0, trillion}, "250", "UPDATES",
          "between validations, and at the end; 0: never", saved},
         {"eval-batches", Int{&O::eval_batches, 1, trillion}, "20", "BATCHES", "of validation data each time", saved},
         {"sample-every", Int{&O::sample_every, 0, trillion}, "1000", "UPDATES",
          "between samples of text, and at the end; 0: never", saved},
         {"sample-tokens", Int{&O::sample_tokens, 0, million}, "256", "TOKENS", "in a sample; 0: no samples", saved},
     }},
    {"Output",
     train,
     {
         {"out", Text{&O::out}, nullptr, "DIR",
          "a new directory for checkpoints, log.jsonl and report.html [out/MODEL, out/init]"},
         {"save-every", Int{&O::save_every, 0, trillion}, "500", "UPDATES",
          "between checkpoints, and at the end; 0: never", saved},
         {"keep", Int{&O::keep, 0, trillion}, "3", "CHECKPOINTS", "the newest ones stay; 0: all", saved},
         {"resume", Flag{&O::resume}, nullptr, nullptr,
          "go on from the newest checkpoint in --out, with its options where not given"},
     }},
    {"Model",
     generate | eval,
     {
         {"from", Text{&O::from}, "out/tiny", "PATH", "run, checkpoint or Hugging Face directory, or llm.c .bin"},
         {"tokenizer", Text{&O::tokenizer}, nullptr, "byte|gpt2|none|FILE", "[the model's own]"},
         {"no-special-tokens", Flag{&O::no_special_tokens}, nullptr, nullptr,
          "read the names of special tokens in a text, such as <|endoftext|>, as ordinary text"},
     }},
    {"Text",
     generate,
     {
         {"prompt", Text{&O::prompt}, "\n", "TEXT", "the text begins with it [a line break]"},
         {"prompt-ids", Text{&O::prompt_ids}, nullptr, "IDS", "the same as token ids, such as '1 2 3'"},
         {"tokens", Int{&O::tokens, 1, trillion}, "256", "TOKENS", "to add to the prompt"},
         {"temperature", Real{&O::temperature, 0, 100}, "0.8", "T",
          "below 1 the likely becomes likelier; 0: always the likeliest token"},
         {"top-k", Int{&O::top_k, 0, trillion}, "0", "TOKENS", "choose among so many likeliest; 0: all"},
     }},
    {"Data",
     eval,
     {
         {"data", Text{&O::data}, nullptr, "PATH",
          "a text file, or llm.c shards: 'shards/*_val_*.bin' in quotes; must be given"},
         {"batch", Int{&O::batch, 1, 65536}, "4", "ROWS", "sequences computed at a time"},
         {"seq", Int{&O::seq, 0, million}, "0", "TOKENS", "length of a window; 0: the model's context"},
     }},
    {"Machine",
     train | generate,
     {
         {"seed", Int{&O::seed, 0, INT64_MAX}, "1337", "N", "same seed, same result, whatever the number of threads",
          saved},
     }},
    {"Machine",
     train | generate | eval,
     {
         {"threads", Int{&O::threads, 0, 4096}, "0", "N",
          "0: one for each core, or as many as a container's CPU quota is worth", cpu_only},
         {"device", Int{&O::device, 0, 1023}, "0", "N", "which GPU, as nvidia-smi counts them", gpu_only},
         {"dtype", Text{&O::dtype, {"bf16", "fp32"}}, "bf16", nullptr,
          "of parameters and activations; gradients and the optimizer's state are fp32", saved | gpu_only},
     }},
    {"Machine",
     train,
     {
         {"matmul", Text{&O::matmul, {"fp32", "bf16"}}, "fp32", nullptr,
          "what matrix products round their factors to (bf16: AMX or AVX512-BF16 only)", saved | cpu_only},
         {"matmul", Text{&O::matmul, {"fp32", "tf32"}}, "fp32", nullptr,
          "what products of --dtype fp32 round their factors to", saved | gpu_only},
         {"recompute", Text{&O::recompute, {"none", "gelu", "ln", "block"}}, "gelu", nullptr,
          "memory saved by computing twice, each more than the one before; gelu takes no time, results stay the same",
          saved | cpu_only},
         {"recompute", Text{&O::recompute, {"none", "gelu", "ln", "block"}}, "none", nullptr,
          "memory saved by computing twice, each more than the one before; gelu and ln may round GELU otherwise",
          saved | gpu_only},
         {"profile", Flag{&O::profile}, nullptr, nullptr, "prints where a step's time goes, at the end"},
     }},
    {"Arguments",
     convert,
     {
         {"IN", Text{&O::in_path}, nullptr, "PATH", "the model to read", argument},
         {"OUT", Text{&O::out_path}, nullptr, "PATH",
          "NAME.bin: a llm.c model file; other names: a new Hugging Face directory", argument},
     }},
    {"Output",
     convert,
     {
         {"bf16", Flag{&O::bf16}, nullptr, nullptr, "half the size: OUT.bin in bf16 (version 5), not fp32 (version 3)"},
     }},
    {"Arguments",
     tokenize,
     {
         {"TEXT", Text{&O::in_path}, nullptr, "PATH", "the text file to read", argument},
         {"OUT.bin", Text{&O::out_path}, nullptr, "PATH", "the shard to write, a new file", argument},
     }},
    {"Arguments",
     info,
     {
         {"PATH", Text{&O::in_path}, nullptr, "PATH", "checkpoint, model, shard, tokenizer, log, text, …", argument},
     }},
    {"Output",
     info,
     {
         {"verify", Flag{&O::verify}, nullptr, nullptr, "read all of it, and look for what cannot be"},
     }},
};

}  // namespace options_table

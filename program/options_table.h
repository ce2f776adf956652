// The options, each in one row: name, commands and traits, member, default, unit or choices, help, range. Only
// options.cpp reads this table.
#pragma once

#include <variant>
#include <vector>

#include "io/model/llmc_files.h"
#include "program/options.h"

namespace options_table {

enum : unsigned {
    // the commands that have the option
    train = 1,
    generate = 2,
    eval = 4,
    convert = 8,
    tokenize = 16,
    info = 32,

    unsaved = 64,     // not part of what defines a training run: checkpoints do not keep it
    fixed = 128,      // cannot change at --resume
    shape = 256,      // set by --model
    optional = 512,   // a saved "" is allowed
    argument = 1024,  // positional and required

    cpu_only = 2048,  // an option of one of the two programs
    gpu_only = 4096,

    report = 8192  // a command
};

struct Command {
    const char* name;
    unsigned bit;
    const char* help;
};
inline constexpr Command commands[] = {
    {"train", train, "Train GPT-2 on text or token shards. This is the default command."},
    {"generate", generate, "Generate text with a trained model."},
    {"eval", eval, "Print a model's loss and perplexity on a text, or its multiple-choice accuracy."},
    {"convert", convert, "Convert a model between Hugging Face, llm.c (.bin) and llama.cpp (.gguf)."},
    {"tokenize", tokenize, "Tokenize a text into an llm.c token shard, or learn a tokenizer from it."},
    {"report", report, "Compare up to 20 runs on one HTML page: curves, differing options, results."},
    {"info", info, "Describe a model, checkpoint, shard or other file: its type, shapes and sizes."},
};

inline constexpr const char* models[] = {"tiny", "d12", "d24", "d36", "d48"};

inline constexpr const char* examples = R"(
Examples:
  Train a model on a text of your own for half an hour, then generate text:
    PROGRAM --data mybook.txt --minutes 30 --out out/mybook
    PROGRAM generate --from out/mybook --prompt "Once upon a time"
  Continue that run to step 6000:
    PROGRAM --resume --out out/mybook --steps 6000
  Fine-tune a Hugging Face model:
    PROGRAM --init path/to/gpt2 --data mybook.txt --lr 3e-5

PROGRAM COMMAND --help lists the options of one command,
PROGRAM --version says how the program was built. All commands and options:
)";

// Options that exclude each other.
inline constexpr std::pair<const char*, const char*> exclusive[] = {
    {"layers", "init"},        {"heads", "init"},
    {"channels", "init"},      {"context", "init"},
    {"model", "init"},         {"vocab", "init"},
    {"init", "resume"},        {"prompt-ids", "prompt"},
    {"prompt-file", "prompt"}, {"prompt-file", "prompt-ids"},
    {"minutes", "hours"},      {"minutes", "steps"},
    {"minutes", "resume"},     {"hours", "steps"},
    {"minutes", "replanned"},  {"hours", "replanned"},
    {"hours", "resume"},       {"tokenizer", "train"},
    {"embedding", "init"},     {"samples", "interactive"}};

// A row of the table: an option or, with a name alone, the heading of those below it.
struct OptionRow {
    const char* name;
    unsigned traits = 0;
    std::variant<int64_t Options::*, double Options::*, bool Options::*, std::string Options::*,
                 std::vector<std::string> Options::*>
        member = {};
    std::string initial = "";  // default: "0.1"; by --model "tiny 16, others 4"; in words "(batch * seq)"; or ""
    const char* unit = "";     // in lower case the choices: "adamw|muon"
    const char* help = "";
    double low = 0, high = 1;  // the range of a number
};

// The default of a shape option: "tiny 4, d12 12, …".
inline std::string by_model(int64_t GPT2Config::*member) {
    std::string text;
    for (const char* name : models)
        text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string((*gpt2_preset(name)).*member);
    return text;
}

using O = Options;

inline const std::vector<OptionRow> rows = {
    {"Arguments"},
    {"IN", convert | argument, &O::in_path, "", "PATH",
     "the model to read: a run, checkpoint or Hugging Face directory, or an llm.c .bin or .gguf file"},
    {"OUT", convert | argument, &O::out_path, "", "PATH",
     "what to write: NAME.bin is an llm.c model file, NAME.gguf one for llama.cpp, Ollama and LM Studio, any other "
     "name a new Hugging Face directory"},
    {"TEXT", tokenize | argument, &O::in_path, "", "PATH",
     "the text to read: .txt or .jsonl, plain, .gz or .zst, a directory of them, or a pattern in quotes"},
    {"OUT", tokenize | argument, &O::out_path, "", "PATH",
     "what to write, a new file: NAME.bin is a token shard, with --train NAME.json a Hugging Face tokenizer"},
    {"RUN...", report | argument, &O::runs, "", "DIR", "the directories of the runs, as --out named them"},
    {"OUT", report | argument, &O::out_path, "", "PATH", "the page to write, a new file NAME.html"},
    {"PATH", info | argument, &O::in_path, "", "PATH", "a run, checkpoint, model, token shard, tokenizer, log or text"},
    {"Data"},
    {"data", train, &O::data, "data/tinyshakespeare.txt", "PATH",
     "training data: a text (.txt) or JSON lines (.jsonl), plain, .gz or .zst, a directory of them, a pattern in "
     "quotes "
     "such as 'books/*.txt', or llm.c token shards: 'shards/*_train_*.bin'; may be given several times"},
    {"data", eval, &O::data, "", "PATH",
     "data to evaluate on (required without --choices): a text (.txt) or JSON lines (.jsonl), plain, .gz or .zst, a "
     "directory of them, a pattern in quotes, or llm.c token shards: 'shards/*_val_*.bin'; may be given several times"},
    {"val", train | optional, &O::val, "(the last tenth of --data)", "PATH",
     "validation data, as for --data; may be given several times"},
    {"field", train | eval | tokenize, &O::field, "text", "NAME",
     "JSON lines: the member of each object that is the text"},
    {"text-mb", train | fixed, &O::text_mb, "0", "MB",
     "use about so many MB of the texts of --data, in pieces taken evenly from all of them (0: all)", 0, 1e9},
    {"documents", train | fixed, &O::documents, "", "",
     "train on sequences that lie within one document, between end-of-text tokens; shorter documents are left out"},
    {"tokenizer", train | fixed, &O::tokenizer, "(byte, or that of the model with --init)",
     "byte|gpt2|bpe:N|superbpe:N|none|FILE",
     "byte: every byte is a token; gpt2: GPT-2's BPE; bpe:N: a BPE of N tokens, learned from the training data, such "
     "as bpe:4096; superbpe:N: the same, but an eighth of the tokens cross words (Liu et al. 2025); FILE: "
     "tokenizer.json, merges.txt, an llm.c tokenizer or a Hugging Face directory; none: the data "
     "are "
     "shards of token ids without a text form (a new model then needs --vocab)"},
    {"tokenizer", tokenize | generate | eval, &O::tokenizer, "(byte, or that of the model with --from)",
     "byte|gpt2|none|FILE",
     "byte: every byte is a token; gpt2: GPT-2's BPE; FILE: tokenizer.json, merges.txt, an llm.c tokenizer or a "
     "Hugging Face directory; none: the data are shards of token ids without a text form"},
    {"train", tokenize, &O::train_tokenizer, "", "",
     "learn a byte-level BPE of --vocab tokens from TEXT, and write it as OUT.json"},
    {"superwords", tokenize, &O::superwords, "", "",
     "let an eighth of the tokens that --train learns cross words, as --tokenizer superbpe:N does"},
    {"vocab", tokenize, &O::vocab, "", "N", "vocabulary size of the tokenizer that --train learns", 257,
     GPT2Limits::vocab},
    {"no-special-tokens", train | tokenize | generate | eval | fixed, &O::no_special_tokens, "", "",
     "tokenize the names of special tokens, such as <|endoftext|>, as ordinary text"},
    {"batch", eval, &O::batch, "4", "N", "batch size: sequences per forward pass", 1, 65536},
    {"seq", eval, &O::seq, "0", "TOKENS",
     "sequence length: the data are read in windows of this size (0: the model's context)", 0, 1e6},
    {"stride", eval, &O::stride, "0", "TOKENS",
     "distance of the windows; below --seq they overlap, and each token counts once, in the first window that predicts "
     "it (0: --seq, no overlap)",
     0, 1e6},
    {"Model"},
    {"from", generate | eval, &O::from, "out/tiny", "PATH",
     "the model: a run, checkpoint or Hugging Face directory, or an llm.c .bin or .gguf file"},
    {"model", train | unsaved, &O::model, "tiny", "tiny|d12|d24|d36|d48",
     "model size, and defaults that suit it; d12 to d48 are GPT-2 124M, 350M, 774M and 1558M"},
    {"layers", train | fixed | shape, &O::layers, by_model(&GPT2Config::layers), "N", "transformer blocks", 1, 1000},
    {"heads", train | fixed | shape, &O::heads, by_model(&GPT2Config::heads), "N", "attention heads", 1, 1000},
    {"channels", train | fixed | shape, &O::channels, by_model(&GPT2Config::channels), "N",
     "embedding dimension, a multiple of --heads", 1, 1e5},
    {"context", train | fixed | shape, &O::context, by_model(&GPT2Config::context), "TOKENS",
     "context length: number of position embeddings", 1, 1e6},
    {"vocab", train | fixed, &O::vocab, "0", "N",
     "vocabulary size of a new model (0: the tokenizer's); more, such as 50304, pads the embedding with unused ids", 0,
     GPT2Limits::vocab},
    {"init", train | optional, &O::init, "", "PATH",
     "fine-tune this model: a run, checkpoint or Hugging Face directory, or an llm.c .bin or .gguf file"},
    {"embedding", train | fixed, &O::embedding, "random", "random|pairs",
     "initial token embeddings of a new model; pairs: alike for tokens that have like neighbours in the training data, "
     "which saves the first few hundred steps"},
    {"Training"},
    {"batch", train, &O::batch, "tiny 16, others 4", "N", "batch size: sequences per forward and backward", 1, 65536},
    {"seq", train, &O::seq, "tiny 128, --init 256, others 1024", "TOKENS", "sequence length, up to --context", 1, 1e6},
    {"total-batch", train, &O::total_batch, "(batch * seq * shards)", "TOKENS",
     "tokens per optimizer step, a multiple of batch * seq; gradients are accumulated over several batches", 1, 1e12},
    {"shards", train | fixed, &O::shards, "(processes)", "N",
     "sum the gradients of N equal parts of a step's batches apart, then over a binary tree; a power of two; as many "
     "processes at most can share the run",
     1, 65536},
    {"minutes", train | unsaved, &O::minutes, "0", "MINUTES",
     "choose model, tokenizer, rates and steps for the lowest loss in a run of so many minutes on this machine; "
     "options "
     "given by hand are kept (0: off)",
     0, 1e7},
    {"hours", train | unsaved, &O::hours, "0", "HOURS", "--minutes in hours", 0, 1e5},
    {"steps", train, &O::steps, "tiny 3000, --init 500, others 20000", "STEPS", "number of optimizer steps", 1, 1e12},
    {"lr", train, &O::lr, "tiny 0.003, d12 0.0006, d24 0.0003, d36 0.00025, d48 0.0002, --init 0.00005", "RATE",
     "peak learning rate", 0, 10},
    {"warmup", train, &O::warmup, "tiny 100, --init 20, others 700", "STEPS",
     "linear warm-up over this many steps, at most --steps; the default is at most a tenth of --steps", 0, 1e12},
    {"schedule", train, &O::schedule, "cosine", "cosine|linear|constant|wsd",
     "decay of the learning rate after the warm-up; wsd (warm-up, stable, decay): constant until the last fifth"},
    {"decay-frac", train, &O::decay_frac, "(wsd 0.2, others 1)", "FRACTION",
     "part of the steps after the warm-up, the last, in which the learning rate decays", 0.001, 1},
    {"final-lr-frac", train, &O::final_lr_frac, "0.1", "FRACTION",
     "learning rate of the last step, as a fraction of the peak", 0, 1},
    {"replanned", train | optional, &O::replanned, "", "STEP:STEPS,...",
     "up to step STEP the run was to have STEPS steps, and the schedule went at that pace; --minutes corrects its plan "
     "so"},
    {"optimizer", train | fixed, &O::optimizer, "tiny muon, others adamw", "adamw|muon|normuon",
     "for the weight matrices of the blocks; all other parameters have AdamW"},
    {"muon-lr", train, &O::muon_lr, "0.02", "RATE", "peak learning rate for the matrices that Muon updates", 0, 10},
    {"weight-decay", train, &O::weight_decay, "0.1", "RATE",
     "decoupled weight decay of matrices and embeddings; biases and LayerNorm have none", 0, 100},
    {"beta1", train, &O::beta1, "0.9", "BETA", "AdamW: decay rate of the moving average of gradients", 0, 0.999999},
    {"beta2", train, &O::beta2, "tiny 0.99, others 0.95", "BETA",
     "AdamW: decay rate of the moving average of squared gradients", 0, 0.999999},
    {"clip", train, &O::clip, "1", "NORM", "gradient clipping: maximum norm (0: off)", 0, 1e9},
    {"dropout", train, &O::dropout, "0", "P",
     "dropout probability, as in GPT-2: of embeddings, attention weights and both projections of a block (0: off)", 0,
     0.999},
    {"sampled-softmax", train | cpu_only, &O::sampled_softmax, "0", "N",
     "compute a training step's softmax over the tokens that are targets in the batch and N that are drawn at random, "
     "not over all of the vocabulary: much faster for small models with many tokens; training losses are then "
     "estimates, and token embeddings are updated without momentum, in steps that use them (0: over all)",
     0, 65536},
    {"skip-outliers", train, &O::skip_outliers, "0", "Z",
     "skip steps with a loss or gradient norm Z standard deviations above the mean of the last 128 (0: off)", 0, 1e9},
    {"Evaluation and samples"},
    {"eval-every", train, &O::eval_every, "250", "STEPS",
     "compute the validation loss every this many steps, and at the end (0: never)", 0, 1e12},
    {"eval-batches", train, &O::eval_batches, "20", "N",
     "number of batches for a validation loss; ten times as many at the end", 1, 1e12},
    {"patience", train, &O::patience, "0", "N",
     "end after N evaluations in a row that find no lower validation loss (0: train for all --steps); the best model "
     "is in OUT/best",
     0, 1e12},
    {"choices", train | eval | optional, &O::choices, "", "FILE",
     "multiple-choice examples: print how many the model answers correctly, in training with each validation; "
     "HellaSwag or LAMBADA as JSON lines, or llm.c's .bin (HellaSwag, MMLU)"},
    {"limit", train | eval, &O::limit, "0", "N", "use only the first N examples of --choices (0: all)", 0, 1e12},
    {"sample-every", train, &O::sample_every, "1000", "STEPS",
     "print generated text every this many steps, and at the end (0: never)", 0, 1e12},
    {"sample-tokens", train, &O::sample_tokens, "256", "TOKENS", "number of tokens in that text (0: no text)", 0, 1e6},
    {"Text"},
    {"prompt", generate, &O::prompt, "\n", "TEXT", "the text to continue"},
    {"prompt-file", generate, &O::prompt_file, "", "FILE", "a file with the text to continue (-: standard input)"},
    {"prompt-ids", generate, &O::prompt_ids, "", "IDS",
     "the prompt as token ids, such as '1 2 3', instead of --prompt"},
    {"interactive", generate, &O::interactive, "", "",
     "read lines from standard input and continue each; the text so far is kept. Ctrl-C ends a continuation, the end "
     "of input (Ctrl-D) the program"},
    {"samples", generate, &O::samples, "1", "N", "number of continuations, computed together", 1, 65536},
    {"tokens", generate, &O::tokens, "256", "TOKENS",
     "number of tokens to generate; each time the context is full, its older half is forgotten", 1, 1e12},
    {"temperature", generate, &O::temperature, "0.8", "T",
     "softmax temperature: lower is less random (0: always the most likely token)", 0, 100},
    {"top-k", generate, &O::top_k, "0", "K", "sample only from the K most likely tokens (0: from all)", 0, 1e12},
    {"top-p", generate, &O::top_p, "1", "P",
     "sample only from the likeliest tokens that together have probability P (1: from all)", 0, 1},
    {"min-p", generate, &O::min_p, "0", "P",
     "sample only from tokens with at least P times the probability of the most likely one (0: from all)", 0, 1},
    {"repetition-penalty", generate, &O::repetition_penalty, "1", "X",
     "divide the logits of tokens that have occurred by X, or multiply them if they are negative (1: off)", 0.01, 100},
    {"stop", generate, &O::stop, "", "TEXT", "end before this text; may be given several times"},
    {"ignore-end", generate, &O::ignore_end, "", "",
     "continue after the end-of-text token, which ends a text otherwise"},
    {"Output"},
    {"out", train | unsaved, &O::out, "(out/MODEL, or out/init with --init)", "DIR",
     "directory of the run, a new one unless --resume is given: checkpoints, log.jsonl, report.html"},
    {"save-every", train, &O::save_every, "500", "STEPS",
     "save a checkpoint every this many steps, and at the end (0: never)", 0, 1e12},
    {"keep", train, &O::keep, "3", "N", "keep the newest N checkpoints (0: all)", 0, 1e12},
    {"tensorboard", train, &O::tensorboard, "", "",
     "also write the log and the samples for TensorBoard: tensorboard --logdir OUT"},
    {"resume", train | unsaved, &O::resume, "", "",
     "continue the run in --out from its newest checkpoint, with its options unless given again"},
    {"bf16", convert, &O::bf16, "", "",
     "write OUT.bin in bf16 (llm.c's version 5, half the size) instead of fp32 (version 3)"},
    {"type", convert, &O::type, "f32", "f32|f16|bf16|q8_0",
     "type of the matrices in OUT.gguf; q8_0 rounds each block of 32 values to 8 bits with a common scale"},
    {"verify", info, &O::verify, "", "",
     "read all of it and check checksums and values; exit status 1 if something is damaged"},
    {"Machine"},
    {"seed", train | generate, &O::seed, "1337", "N", "random seed; results do not depend on the number of threads", 0,
     0x1p63},
    {"threads", train | generate | eval | unsaved | cpu_only, &O::threads, "0", "N",
     "CPU threads (0: OMP_NUM_THREADS if set, else one per core, fewer under a container's CPU quota)", 0, 4096},
    {"device", train | generate | eval | unsaved | gpu_only, &O::device, "0", "N",
     "index of the GPU, as nvidia-smi lists them", 0, 1023},
    {"dtype", train | generate | eval | gpu_only, &O::dtype, "bf16", "bf16|fp32",
     "data type of parameters and activations; gradients and optimizer state are always fp32"},
    {"weights", generate | eval | cpu_only, &O::weights, "fp32", "fp32|bf16|int8",
     "data type of the weight matrices: bf16 takes half the memory, and about half the time per generated token, int8 "
     "(with a scale per row) a quarter; results are less exact"},
    {"matmul", train | cpu_only, &O::matmul, "fp32", "fp32|bf16",
     "precision of matmul inputs (sums are fp32); bf16 needs a CPU with AVX512-BF16 or AMX"},
    {"matmul", train | gpu_only, &O::matmul, "fp32", "fp32|tf32",
     "precision of matmul inputs; tf32 needs --dtype fp32"},
    {"recompute", train | cpu_only, &O::recompute, "gelu", "none|gelu|ln|block",
     "recompute activations in the backward pass to save memory, more of them from gelu (costs no time) to ln to "
     "block; results are unchanged"},
    {"recompute", train | gpu_only, &O::recompute, "none", "none|gelu|ln|block",
     "recompute activations in the backward pass to save memory, more of them from gelu to ln to block; gelu and "
     "ln may round GELU differently"},
    {"profile", train | unsaved, &O::profile, "", "",
     "print at the end how the time of a step divides among the layers"},
};

}  // namespace options_table
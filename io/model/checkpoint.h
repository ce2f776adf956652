// Models on disk: a Hugging Face GPT-2 directory (config.json, model.safetensors, tokenizer files), which is
// also what a checkpoint is, with optimizer.safetensors and trainer_state.json beside it; or a llm.c model
// file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpt2_tensors.h"
#include "io/file/checksum.h"
#include "io/text/tokenizer.h"

// `path` is a checkpoint or Hugging Face directory, a run's OUT (its newest checkpoint), a model.safetensors
// with config.json beside it, or a llm.c .bin. Throws InputError: missing tensors, wrong shapes, what
// GPT2LMHeadModel would compute otherwise than we do (another activation, untied embeddings, other
// layer_norm_epsilon), ...
GPT2Config read_model_config(const std::string& path);
void read_model(const std::string& path, const GPT2Config& config, float* parameters);
// The first tensor that has NaN or infinite values, and how many: "tensor transformer.h.1.mlp.c_fc.weight: 1 NaN
// or infinite value"; "" where all are numbers.
std::string nonfinite_values(const GPT2Config& config, const float* parameters);
// read_model, for a model that is to compute. Throws CheckFailed naming the tensor unless all of it is numbers.
void read_finite_model(const std::string& path, const GPT2Config& config, float* parameters);
// The tokenizer that goes with it: the directory's own; for a llm.c file GPT-2's if V is 50257, bytes if V is
// 256; null if unknown.
std::shared_ptr<const Tokenizer> read_model_tokenizer(const std::string& path, const TokenizerSettings& settings = {});
// The tokenizer that `spec` (as in load_tokenizer) names, or where that is "" the model's own, or "none" where the
// model has none. Its size need not be config.vocab: a model may have more rows than tokens, as in nanoGPT's 50304, or
// fewer.
std::shared_ptr<const Tokenizer> tokenizer_for_model(const std::string& spec, const std::string& path,
                                                     const TokenizerSettings& settings = {});
// The directory, or the llm.c file, that `path` stands for above.
std::string find_model(const std::string& path);

// Writes config.json, model.safetensors (HF names and layout, fp32, wte without padding rows) and the
// tokenizer's files (none if null) into an existing directory, each fsynced.
std::vector<WrittenFile> write_model_directory(const std::string& directory, const GPT2Config& config,
                                               const float* parameters, const Tokenizer* tokenizer);

// One flat buffer of the optimizer by name ("adam_m", "adam_v").
struct OptimizerBuffer {
    std::string name;
    float* data;
    int64_t size;
};

// What a checkpoint holds beside the model.
struct TrainerState {
    int64_t step = 0;            // updates done
    int64_t last_applied = 0;    // the last of them that was not left out: its random numbers rounded the parameters
    int64_t position = 0;        // BatchSampler's
    double seconds = 0;          // of training so far
    double best_val_loss = 0;    // 0: not yet evaluated
    std::string options = "{}";  // the run's options as a JSON object, to compare (as JSON) at --resume
    // After which steps the last evaluation and sample were made: one that was broken off is made at --resume.
    int64_t evaluated = -1, sampled = -1;
    int64_t data = -1;                      // fingerprint of what is trained and validated on; -1: not known
    std::vector<double> losses{}, norms{};  // of the last updates, oldest first, for --skip-outliers
};

// OUT/step_000500, written beside as OUT/.step_000500.tmp, fsynced, renamed; then OUT/latest (a symbolic
// link) is moved to it atomically and, of the checkpoints, only the newest `keep` are kept (0: all). Returns
// the directory's path.
std::string save_checkpoint(const std::string& out, const GPT2Config& config, const float* parameters,
                            const Tokenizer& tokenizer, const std::vector<OptimizerBuffer>& optimizer,
                            const TrainerState& state, int64_t keep);

// The newest whole checkpoint in OUT (what `latest` names, else the highest step that is whole), or nullopt.
// Whole: trainer_state.json, which is written last, can be read, and every file that it lists is there in its
// size.
std::optional<std::string> find_latest_checkpoint(const std::string& out);
TrainerState read_trainer_state(const std::string& checkpoint);
// Fills the named buffers; throws InputError if one is absent or of another size.
void read_optimizer(const std::string& checkpoint, const std::vector<OptimizerBuffer>& optimizer);
// Reads every file and compares its checksum; throws InputError naming the one that is damaged.
void verify_checkpoint(const std::string& checkpoint);
// The same for each of its files by itself, trainer_state.json first, for `info --verify`.
std::vector<FileCheck> check_files(const std::string& checkpoint);
std::vector<std::string> list_checkpoints(const std::string& out);  // paths, the oldest first

// What --resume goes on from: the newest whole checkpoint in OUT, or nullopt where there never was one. Throws
// InputError where its bytes are damaged, offering the one before, or none is whole. `passed_over`: one line for each
// newer one.
std::optional<std::string> checkpoint_to_resume(const std::string& out, std::vector<std::string>& passed_over);

// Points OUT/latest at it where it does not, as after a crash between saving a checkpoint and naming it.
void mend_latest(const std::string& checkpoint);

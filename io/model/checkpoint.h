// Models on disk: a Hugging Face GPT-2 directory (config.json, model.safetensors, tokenizer files), a checkpoint, which
// is such a directory with optimizer.safetensors and trainer_state.json, an llm.c model file, or a GGUF file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpt2_tensors.h"
#include "io/file/checksum.h"
#include "io/text/tokenizer.h"

// `path` is a checkpoint or Hugging Face directory, a run's OUT (its newest checkpoint), a model.safetensors
// with config.json beside it, an llm.c .bin or a .gguf. Throws InputError for missing tensors, wrong shapes, and
// settings with which GPT2LMHeadModel would compute something else than this program (another activation, untied
// embeddings, another layer_norm_epsilon, …).
GPT2Config read_model_config(const std::string& path);
void read_model(const std::string& path, const GPT2Config& config, float* parameters);
// The first tensor that has NaN or infinite values, and how many: "tensor transformer.h.1.mlp.c_fc.weight: 1 NaN
// or infinite value". "" if all values are finite.
std::string nonfinite_values(const GPT2Config& config, const float* parameters);
// read_model, for a model that will be run. Throws CheckFailed naming the tensor if not all values are finite.
void read_finite_model(const std::string& path, const GPT2Config& config, float* parameters);
// The model's tokenizer: the one in its directory or GGUF file; for an llm.c file GPT-2's if V is 50257, bytes if V is
// 256. Null if it is not known.
std::shared_ptr<const Tokenizer> read_model_tokenizer(const std::string& path, const TokenizerSettings& settings = {});
// The tokenizer that `spec` names (as in load_tokenizer). If `spec` is "", the model's own, or "none" if the model has
// none. Its size need not be config.vocab: a model may have more ids than the tokenizer (nanoGPT has 50304), or fewer.
std::shared_ptr<const Tokenizer> tokenizer_for_model(const std::string& spec, const std::string& path,
                                                     const TokenizerSettings& settings = {});
// The directory or file that `path`, as above, refers to.
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
    // read_optimizer reads only the values [begin, end) of it, to `data`.
    int64_t begin = 0, end = size;
    // If it is set, save_checkpoint gets the values [begin, end) from it, and not from `data`.
    std::function<void(int64_t begin, int64_t end, float* out)> read{};
};

// The state of a checkpoint besides the model.
struct TrainerState {
    int64_t step = 0;          // updates done
    int64_t last_applied = 0;  // the last update that was not skipped; its random numbers rounded the parameters
    int64_t position = 0;      // BatchSampler's
    double seconds = 0;        // of training so far
    double best_val_loss = 0;  // 0: not yet evaluated
    int64_t best_step = -1;    // the step after which that was; -1: not known
    int64_t evaluations_since_best = 0;  // evaluations since then
    std::string options = "{}";          // the run's options as a JSON object, to compare (as JSON) at --resume
    // The steps after which the last evaluation and sample were made, so that --resume makes one that was interrupted.
    int64_t evaluated = -1, sampled = -1;
    int64_t data = -1;                      // fingerprint of the training and validation data; -1: not known
    int64_t data_order = 1;                 // BatchSampler::order_version; 1 is not recorded in files
    std::vector<double> losses{}, norms{};  // of the last updates, oldest first, for --skip-outliers
};

// Writes OUT/.step_000500.tmp, fsyncs it and renames it to OUT/step_000500. Then the symbolic link OUT/latest is set to
// it atomically, and all checkpoints but the newest `keep` are removed (0: none). Returns the directory's path.
std::string save_checkpoint(const std::string& out, const GPT2Config& config, const float* parameters,
                            const Tokenizer& tokenizer, const std::vector<OptimizerBuffer>& optimizer,
                            const TrainerState& state, int64_t keep);

// Writes the model, without the optimizer's state, as the Hugging Face directory OUT/best, whose earlier content is
// replaced atomically. Returns the directory's path.
std::string save_best(const std::string& out, const GPT2Config& config, const float* parameters,
                      const Tokenizer& tokenizer);

// The newest whole checkpoint in OUT (what `latest` names, else the highest step that is whole), or nullopt.
// A checkpoint is whole if trainer_state.json, which is written last, can be read, and every file that it lists exists
// and has the listed size.
std::optional<std::string> find_latest_checkpoint(const std::string& out);
TrainerState read_trainer_state(const std::string& checkpoint);
// Fills the named buffers. Throws InputError if one is missing or has another size.
void read_optimizer(const std::string& checkpoint, const std::vector<OptimizerBuffer>& optimizer);
// Reads every file and compares its checksum; throws InputError naming the one that is damaged.
void verify_checkpoint(const std::string& checkpoint);
// Does the same for each file separately, trainer_state.json first, for `info --verify`.
std::vector<FileCheck> check_files(const std::string& checkpoint);
std::vector<std::string> list_checkpoints(const std::string& out);  // paths, the oldest first

// The checkpoint that --resume continues from: the newest whole one in OUT, or nullopt if there never was one.
// `passed_over` gets one line for each newer checkpoint, which is incomplete. Throws InputError if no checkpoint is
// whole, or if the bytes of the newest are damaged; the message then names the one before.
std::optional<std::string> checkpoint_to_resume(const std::string& out, std::vector<std::string>& passed_over);

// Sets OUT/latest to this checkpoint if it names another, as after a crash between saving a checkpoint and linking it.
void mend_latest(const std::string& checkpoint);

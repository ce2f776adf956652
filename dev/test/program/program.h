// Shared by the tests of the whole program, which is run as a separate process, as its users run it.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dev/test/io/model_files.h"

struct Result {
    int status = -1;  // as in a shell: for a signal, 128 plus its number
    std::string out, err;
    int64_t peak_memory = 0;  // peak resident memory in bytes, pages of files included
};

struct Limits {
    rlim_t memory = RLIM_INFINITY, file = RLIM_INFINITY;  // bytes: of address space, of any one file
};

using Args = std::map<std::string, std::string>;  // option (no dashes) and value; "" for a flag

std::vector<std::string> words(const std::string& command, const Args& args);

class Program : public ModelFiles {
protected:
    static std::string binary();  // what TRAIN_GPT2 names, or ./train_gpt2
    // Then some tests do less, as starting it takes longer, and limits of memory cannot be set.
    static bool is_sanitized();
    // The name with which its messages begin.
    static std::string program_name();

    Program();  // writes `text`

    struct Child {
        pid_t pid;
        int out, err;
    };
    Child start(std::vector<std::string> arguments, const Limits& limits = {}) const;
    static Result finish(const Child& child);
    // Waits until done() is true or the child has ended, which finish() then still reports.
    static void wait_until(const Child& child, const std::function<bool()>& done);
    static void wait_for_file(const Child& child, const std::string& path);
    // For the first line of a run's log. The file is there before signals are handled.
    void wait_for_log(const Child& child, const std::string& out) const;
    Result run(std::vector<std::string> arguments, const Limits& limits = {}) const;
    // Expects success without output to standard error. Returns standard output.
    std::string expect_done(std::vector<std::string> arguments) const;

    // The text that `generate` writes. On standard error there is at most its speed and a note on a long prompt.
    std::string expect_text(std::vector<std::string> arguments) const;

    // A very short training run; `more` adds to these options or replaces them.
    std::vector<std::string> training(const std::string& out, const Args& more = {}) const;
    std::string train(const std::string& out, const Args& more = {}) const;

    // Sets one value of a tensor in a model's safetensors file.
    void set_parameter(const std::string& model, const std::string& tensor, float value) const;

    // The lines of a run's log without their times.
    std::vector<nlohmann::json> timeless_log(const std::string& out) const;
    // Expects the same model, moments, trainer's state and log: everything except the time that it took.
    void expect_same_run(const std::string& a, const std::string& b) const;

    // Every file and directory below the test's directory, with its contents.
    std::map<std::string, std::string> snapshot() const;

    // Expects exit status 2 and one line on standard error that contains all `parts`. No file may have changed.
    void expect_refused(std::vector<std::string> arguments, const std::vector<std::string>& parts,
                        const Limits& limits = {}) const;

    const std::string text = at("text.txt");
    std::vector<std::string> launcher;  // the words of a command that starts the program
};

// --tensorboard: the log and the samples of a run as an event file, which `tensorboard --logdir OUT` shows.
#pragma once

#include <cstdint>
#include <string>

#include "io/file/line_file.h"
#include "program/log.h"

class EventFile {
public:
    // Makes a new file in `out`, which sorts behind those of earlier parts of the run. TensorBoard then drops what they
    // have from `first_step` on, as --resume has cut it off the log. Throws InputError.
    EventFile(const std::string& out, int64_t first_step);
    void write(const LogEntry& entry);  // scalars, named SPLIT/KEY by the keys of log.jsonl: train/loss, val/loss, …
    void write(const Sample& sample);   // a text
    void sync() { file_.sync(); }
    const std::string& trouble() const { return file_.trouble(); }

private:
    void write_event(int64_t step, const std::string& content);
    LineFile file_;
};

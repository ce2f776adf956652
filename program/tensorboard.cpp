// An event file is a sequence of TFRecords. Each contains an Event, in the encoding of protocol buffers; its messages
// and the numbers of their fields are those of TensorFlow's event.proto, summary.proto and tensor.proto.
#include "program/tensorboard.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <string_view>

#include "io/file/checksum.h"
#include "io/file/utf8.h"

namespace {

// Appends an unsigned integer, lowest byte first.
template <class Integer>
void put_fixed(std::string& out, Integer value) {
    for (size_t i = 0; i < sizeof value; i++) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void put_varint(std::string& out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
    out += static_cast<char>(value);
}

// A field of a message begins with its number and the kind of its value: 0 is an integer, 1 a double, 2 bytes (a
// string or a message), 5 a float.
void put_integer(std::string& out, uint64_t field, uint64_t value) {
    put_varint(out, field << 3);
    put_varint(out, value);
}
void put_double(std::string& out, uint64_t field, double value) {
    put_varint(out, field << 3 | 1);
    put_fixed(out, std::bit_cast<uint64_t>(value));
}
void put_bytes(std::string& out, uint64_t field, std::string_view value) {
    put_varint(out, field << 3 | 2);
    put_varint(out, value.size());
    out += value;
}
void put_float(std::string& out, uint64_t field, float value) {
    put_varint(out, field << 3 | 5);
    put_fixed(out, std::bit_cast<uint32_t>(value));
}

// A checksum that stands among the data which it covers is masked, so that checksums of it are not degenerate.
uint32_t masked_checksum(std::string_view bytes) { return std::rotr(checksum_castagnoli(bytes), 15) + 0xa282ead8u; }

// The length and its checksum, the data and their checksum.
std::string tf_record(const std::string& data) {
    std::string record;
    put_fixed(record, static_cast<uint64_t>(data.size()));
    put_fixed(record, masked_checksum(record));
    record += data;
    put_fixed(record, masked_checksum(data));
    return record;
}

constexpr std::string_view prefix = "events.out.tfevents.";

// TensorBoard reads a directory's files in the order of their names, which contain the time in seconds. A clock that
// was set back, or a run that is resumed within a second, must not change the order.
std::string new_path(const std::string& out) {
    int64_t seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::error_code ignored;
    for (const auto& item : std::filesystem::directory_iterator(out, ignored)) {
        const std::string name = item.path().filename().string();
        int64_t other = 0;
        if (name.starts_with(prefix)) std::from_chars(name.data() + prefix.size(), name.data() + name.size(), other);
        seconds = std::max(seconds, other + 1);
    }
    return out + "/" + std::string(prefix) + std::to_string(seconds) + ".train_gpt2";
}

// TensorBoard reads a text as Markdown, in which indented lines are shown as they are.
std::string as_markdown(const std::string& text) {
    std::string lines = "    ";
    for (const char c : replace_invalid_utf8(text)) {
        lines += c;
        if (c == '\n') lines += "    ";
    }
    return lines;
}

}  // namespace

EventFile::EventFile(const std::string& out, int64_t first_step) : file_(new_path(out), true) {
    std::string version, start, session_log;
    put_bytes(version, 3, "brain.Event:2");
    write_event(first_step, version);
    put_integer(session_log, 1, 1);  // status: START
    put_bytes(start, 7, session_log);
    write_event(first_step, start);
}

// `content` is the one field that the event has besides its time and step.
void EventFile::write_event(int64_t step, const std::string& content) {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    std::string event;
    put_double(event, 1, now.count());
    put_integer(event, 2, static_cast<uint64_t>(step));
    file_.append(tf_record(event + content));
}

void EventFile::write(const LogEntry& entry) {
    std::string summary, content;
    for (const auto& [key, number] : values_of(entry)) {
        std::string value;
        put_bytes(value, 1, entry.split + "/" + key);
        put_float(value, 2, static_cast<float>(number));
        put_bytes(summary, 1, value);
    }
    put_bytes(content, 5, summary);
    write_event(entry.step, content);
}

void EventFile::write(const Sample& sample) {
    std::string plugin, metadata, tensor, value, summary, content;
    put_bytes(plugin, 1, "text");
    put_bytes(metadata, 1, plugin);
    put_integer(tensor, 1, 7);  // type: string
    put_bytes(tensor, 2, "");   // shape: a scalar
    put_bytes(tensor, 8, as_markdown(sample.text));
    put_bytes(value, 1, "sample");
    put_bytes(value, 8, tensor);
    put_bytes(value, 9, metadata);
    put_bytes(summary, 1, value);
    put_bytes(content, 5, summary);
    write_event(sample.step, content);
}

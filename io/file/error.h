// Bad input: a file or an option that cannot be used. main() prints the message as one line and exits with status 2.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

// Text for one line of a terminal: control characters are written as "\u001b". They include DEL and U+0080 … U+009F,
// which are C2 80 … C2 9F in UTF-8.
inline std::string without_controls(std::string_view text) {
    constexpr char digits[] = "0123456789abcdef";
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        const bool c1 = out.ends_with('\xC2') && byte >= 0x80 && byte < 0xA0;
        if (c1) out.pop_back();
        if (c1 || byte < ' ' || byte == 0x7F)
            out.append("\\u00").append({digits[byte / 16], digits[byte % 16]});
        else
            out += c;
    }
    return out;
}

// The message is one line that is harmless to a terminal, although the paths and contents in it may be anything.
struct InputError : std::runtime_error {
    explicit InputError(const std::string& message)
        : std::runtime_error(message.size() <= longest ? without_controls(message)
                                                       : without_controls(message.substr(0, longest)) + "...") {}
    static constexpr size_t longest = 8192;
};

// A file is well formed, but the numbers in it, or computed from it, are not finite. main() prints the message as one
// line and exits with status 1.
struct CheckFailed : std::runtime_error {
    explicit CheckFailed(const std::string& message) : std::runtime_error(without_controls(message)) {}
};

// "data.bin: open failed: No such file or directory; check the path". `error` is errno's.
[[noreturn]] inline void system_error(const std::string& path, const std::string& call, int error,
                                      const std::string& remedy) {
    throw InputError(path + ": " + call + " failed: " + std::strerror(error) + "; " + remedy);
}

// "data.bin: magic number: found 7, expected 20240520 (an llm.c token shard); pass a shard or a text file"
[[noreturn]] inline void bad_input(const std::string& file, const std::string& field, const std::string& found,
                                   const std::string& expected, const std::string& remedy) {
    throw InputError(file + ": " + field + ": found " + found + ", expected " + expected + "; " + remedy);
}

// Reads JSON files that may be damaged or hostile: errors are one line that names the file and the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

// Throws InputError if the text is not JSON, an object has a key twice, values are nested deeper than 64, or the top
// level is not an object.
nlohmann::json parse_json_object(const std::string& path, std::string_view text);
nlohmann::json read_json_file(const std::string& path);
inline constexpr int64_t max_json_bytes = int64_t{16} << 20;  // of a file; each byte can take 40 in memory

// Adds a line "crc32", the checksum of everything before it, to the text of an object as dump(2) writes it.
std::string with_own_checksum(std::string object);
// Throws InputError if the checksum of a file is wrong; `root` is its parsed content.
void check_own_checksum(const std::string& path, const nlohmann::json& root, const std::string& remedy);

// object[key] as an integer within [low, high]; throws InputError.
int64_t json_integer(const std::string& path, const nlohmann::json& object, const std::string& key, int64_t low,
                     int64_t high);
// The same for a value that messages call `field`; null: it is missing.
int64_t json_integer(const std::string& path, const std::string& field, const nlohmann::json* value, int64_t low,
                     int64_t high);

// A path as a JSON value: a string or, as JSON strings must be UTF-8 and paths need not be, the array of its bytes.
// path_of_json returns nullopt if the value is neither.
nlohmann::json json_of_path(const std::string& path);
std::optional<std::string> path_of_json(const nlohmann::json& value);

// Text from a file, for a message: in quotes, shortened, with control characters escaped.
std::string one_line(std::string_view text);
// A JSON value for a message, shortened.
std::string json_text(const nlohmann::json& value);

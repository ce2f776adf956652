// JSON files as they come from outside: checked, and complained about in one line that names file and field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

// Throws InputError where the text is no JSON, an object holds a key twice, values are nested deeper than 64, or the
// top is not an object.
nlohmann::json parse_json_object(const std::string& path, std::string_view text);
nlohmann::json read_json_file(const std::string& path);

// An object's text, as dump(2) writes it, with one more line, "crc32": the checksum of all that stands before it.
std::string with_own_checksum(std::string object);
// Throws InputError where a file's is not its own; `root` is what was read of it.
void check_own_checksum(const std::string& path, const nlohmann::json& root, const std::string& remedy);

// object[key] as an integer within [low, high]; throws InputError.
int64_t json_integer(const std::string& path, const nlohmann::json& object, const std::string& key, int64_t low,
                     int64_t high);
// The same for a value that `field` names in messages; null: it is not there.
int64_t json_integer(const std::string& path, const std::string& field, const nlohmann::json* value, int64_t low,
                     int64_t high);

// A path, which may be any bytes, in JSON, whose strings are UTF-8: a string or, where it is no UTF-8, the array of its
// bytes. And back; nullopt where the value is no such thing.
nlohmann::json json_of_path(const std::string& path);
std::optional<std::string> path_of_json(const nlohmann::json& value);

// Text from a file as it may stand in a message: in quotes, control characters escaped (a terminal must not obey them),
// shortened.
std::string one_line(std::string_view text);
// A JSON value for a message, shortened.
std::string json_text(const nlohmann::json& value);

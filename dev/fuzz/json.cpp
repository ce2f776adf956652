// io/file/json.h, which reads every JSON file first.
#include "io/file/json.h"

#include <nlohmann/json.hpp>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"

namespace {

void run(std::string_view input) {
    memory_files::put("a.json", input);
    const nlohmann::json root = read_json_file("a.json");
    for (const auto& [key, value] : root.items()) {
        require_printable(one_line(key), false);
        require_printable(json_text(value), false);
    }
    const nlohmann::json copy = root;  // copy, comparison and dump are recursive: deep nesting must not get here
    require(copy == root, "a copy is equal");
    const std::string text = copy.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    memory_files::put("b.json", text);
    require(read_json_file("b.json").dump() == text, "a written file reads back");
    json_integer("a.json", root, "step", -1, 1 << 20);
}

std::vector<std::string> seeds() {
    return {R"({"step": 17, "a": [1, -2, 3.5e-7, true, false, null], "b": {"c": "\u00e9\ud83d\ude00\n"}})",
            R"({"step": 9223372036854775807, "x": [[[[[]]]]], "": {"": {"": {}}}})", R"({"step":1,"step":2})", "[]",
            "{}"};
}

}  // namespace

const FuzzTarget fuzz_json{"json", run, seeds};

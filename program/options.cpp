#include "program/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/file/error.h"
#include "io/file/json.h"
#include "program/options_table.h"

namespace {

using namespace options_table;

unsigned command_bit(const std::string& name) {
    for (const Command& c : commands)
        if (name == c.name) return c.bit;
    return 0;
}

// The command's rows, those of the other program left out.
template <class Visit>
void each_row(unsigned command, bool on_gpu, Visit&& visit) {
    for (const Group& group : groups)
        if (group.commands & command)
            for (const Row& row : group.rows)
                if (!(row.traits & (on_gpu ? cpu_only : gpu_only))) visit(row);
}

std::string label(const Row& row) { return row.traits & argument ? row.name : std::string("--") + row.name; }

std::string one_of(const std::vector<std::string>& words, const char* separator, const char* last) {
    std::string text;
    for (size_t i = 0; i < words.size(); ++i)
        text += (i == 0 ? "" : i + 1 < words.size() ? separator : last) + words[i];
    return text;
}

[[noreturn]] void bad_option(const std::string& option, const std::string& found, const std::string& expected,
                             const std::string& remedy = "--help lists the options") {
    throw InputError(option + ": found " + found + ", expected " + expected + "; " + remedy);
}

std::string to_text(double x) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, x).ptr};
}
std::string to_text(int64_t x) { return std::to_string(x); }

// All of the text as a number; false if it is none.
bool parse_all(const std::string& text, int64_t& x) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
    return error == std::errc{} && end == text.data() + text.size();
}
bool parse_all(const std::string& text, double& x) {  // by strtod: libc++ before 20 has no std::from_chars for it
    if (text.empty() || text[0] == '+' || text.find_first_not_of("0123456789.eE+-") != text.npos) return false;
    errno = 0;
    char* end = nullptr;
    x = std::strtod(text.c_str(), &end);
    return errno == 0 && *end == '\0';
}

template <class Number>
Number parse_number(const Row& row, const std::string& text, Number low, Number high) {
    Number x{};
    if (!parse_all(text, x) || !(low <= x && x <= high)) {
        const std::string kind = std::is_same_v<Number, double> ? "" : "a whole number ";
        bad_option(label(row), text.empty() ? "nothing" : text, kind + to_text(low) + " … " + to_text(high));
    }
    return x;
}

const std::string& parse_text(const Row& row, const Text& value, const std::string& text) {
    const auto among = [&](const std::vector<std::string>& words) { return std::ranges::count(words, text) > 0; };
    const std::string expected = one_of(value.choices, ", ", " or ");
    if (text.empty()) bad_option(label(row), "nothing", expected.empty() ? row.unit : expected);
    if (!value.choices.empty() && !among(value.choices)) bad_option(label(row), text, expected);
    return text;
}

// Sets the option's member from its text, as on the command line, in the table and (JSON's numbers) in a checkpoint.
void assign(Options& options, const Row& row, const std::string& text) {
    if (const auto* i = std::get_if<Int>(&row.value)) {
        options.*i->member = parse_number(row, text, i->low, i->high);
    } else if (const auto* r = std::get_if<Real>(&row.value)) {
        options.*r->member = parse_number(row, text, r->low, r->high);
    } else if (const auto* t = std::get_if<Text>(&row.value)) {
        options.*t->member = parse_text(row, *t, text);
    } else {
        if (!text.empty() && text != "true" && text != "false") bad_option(label(row), text, "true or false");
        options.*std::get<Flag>(row.value).member = text != "false";  // "": on the command line
    }
}

// The same for one that was saved, which the user has not given now.
void assign_saved(Options& options, const Row& row, const std::string& text) {
    try {
        assign(options, row, text);
    } catch (const InputError& error) {
        throw InputError(std::string("the checkpoint's options: ") + error.what());
    }
}

nlohmann::ordered_json value_of(const Options& options, const Row& row) {
    if (const auto* i = std::get_if<Int>(&row.value)) return options.*i->member;
    if (const auto* r = std::get_if<Real>(&row.value)) return options.*r->member;
    if (const auto* t = std::get_if<Text>(&row.value)) return json_of_path(options.*t->member);
    return options.*std::get<Flag>(row.value).member;
}

// As on the command line: words and paths as they are, numbers in their shortest form.
std::string text_of(const Row& row, const nlohmann::ordered_json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (const auto path = path_of_json(value); path && std::holds_alternative<Text>(row.value)) return *path;
    if (value.is_number_float()) return to_text(value.get<double>());
    return value.dump();
}

int64_t shape_value(const GPT2Config& config, const std::string& name) {
    return name == "layers"     ? config.layers
           : name == "heads"    ? config.heads
           : name == "channels" ? config.channels
                                : config.context;
}

// The default that the row's option has with this model; "" if it has none there.
std::string preset_value(const Preset& preset, const Row& row) {
    for (size_t i = 0; i < std::size(preset_columns); ++i)
        if (row.initial == nullptr && std::string_view(preset_columns[i]) == row.name) return preset.values[i];
    const auto config = gpt2_preset(preset.name);
    return row.traits & shape && config ? to_text(shape_value(*config, row.name)) : "";
}

// "0.1", or by model: "tiny 16, d12 … init 4"
std::string default_text(const Row& row) {
    if (row.initial != nullptr) return row.initial;
    struct Run {
        std::string first, last, value;
    };
    std::vector<Run> runs;
    for (const Preset& preset : presets) {
        const std::string value = preset_value(preset, row);
        if (value.empty()) continue;
        if (runs.empty() || runs.back().value != value) runs.push_back({preset.name, preset.name, value});
        runs.back().last = preset.name;
    }
    std::vector<std::string> parts;
    for (const Run& run : runs)
        parts.push_back(run.first + (run.first == run.last ? "" : " … " + run.last) + " " + run.value);
    return one_of(parts, ", ", ", ");
}

// Help as "  --name UNIT   what it is [default]".
struct Formatter : CLI::Formatter {
    std::string make_option_opts(const CLI::Option* option) const override {
        return option->get_type_size() == 0 ? "" : " " + option->get_type_name();
    }
    std::string make_description(const CLI::App*) const override { return ""; }
    std::string make_usage(const CLI::App*, std::string usage) const override { return usage + "\n"; }
};

// The parser of one command; `options` takes what it parses.
void add_rows(CLI::App& app, unsigned command, bool on_gpu, Options& options, std::set<std::string>& given) {
    app.formatter(std::make_shared<Formatter>());
    app.get_formatter()->column_width(28);
    app.set_help_flag("-h,--help")->group("");
    app.set_version_flag("--version")->group("");
    app.allow_extras();
    for (const Group& group : groups) {
        if (!(group.commands & command)) continue;
        for (const Row& row : group.rows) {
            if (row.traits & (on_gpu ? cpu_only : gpu_only)) continue;
            const auto* text = std::get_if<Text>(&row.value);
            const bool flag = std::holds_alternative<Flag>(row.value);
            const std::string initial = default_text(row);
            const std::string help = row.help + (initial.empty() || initial == "\n" ? "" : " [" + initial + "]");
            const auto take = [&options, &given, &row](const CLI::results_t& values) {
                if (values.size() > 1)
                    bad_option(label(row), std::to_string(values.size()) + " values", "one", "give it once");
                assign(options, row, values[0]);
                given.insert(row.name);
                return true;
            };
            CLI::Option* option = flag ? app.add_flag_callback(
                                             label(row), [take] { take({""}); }, help)
                                       : app.add_option(label(row), take, help);
            option->group(group.title);
            if (flag) continue;
            option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->expected(1);
            option->type_name(row.unit ? row.unit : one_of(text->choices, "|", "|"));
        }
    }
}

std::string usage(const Command& command, bool on_gpu) {
    std::string text = program_name(on_gpu) + " " + std::string(command.bit == train ? "[train]" : command.name);
    each_row(command.bit, on_gpu,
             [&](const Row& row) { text += row.traits & argument ? " " + std::string(row.name) : ""; });
    return text + " [OPTION]…";
}

std::string help_of(const Command& command, bool on_gpu) {
    Options ignored;
    std::set<std::string> given;
    CLI::App app;
    add_rows(app, command.bit, on_gpu, ignored, given);
    std::string text = app.help("Usage: " + usage(command, on_gpu) + "\n" + command.help);
    for (size_t at; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);
    return text;
}

std::string help_of_all(bool on_gpu) {
    std::string text =
        program_name(on_gpu) + " trains GPT-2 on " + (on_gpu ? "an NVIDIA GPU" : "a CPU") + ", from text to samples.\n";
    for (const Command& command : commands) text += "\n" + help_of(command, on_gpu);
    return text + "\n" + program_name(on_gpu) + " --version says what built it and what is built in.\n";
}

// How many characters have to be inserted, left out, replaced or swapped with their neighbour to make b of a (the
// optimal string alignment distance).
int64_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::vector<int64_t>> d(a.size() + 1, std::vector<int64_t>(b.size() + 1));  // of their beginnings
    for (size_t i = 0; i <= a.size(); ++i)
        for (size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                d[i][j] = static_cast<int64_t>(i + j);
                continue;
            }
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[a.size()][b.size()];
}

[[noreturn]] void unknown_argument(const Command& command, bool on_gpu, const std::vector<std::string>& arguments) {
    const auto dashed = std::ranges::find_if(arguments, [](const std::string& a) { return a.starts_with('-'); });
    if (dashed == arguments.end())
        bad_option(arguments[0], "after the options", "nothing there", "put a glob or a text with spaces into quotes");
    std::string name = dashed->substr(0, dashed->find('='));
    std::ranges::replace(name, '_', '-');
    std::vector<std::string> candidates = {"--help", "--version"}, nearest;
    each_row(command.bit, on_gpu, [&](const Row& row) { candidates.push_back(label(row)); });
    const auto letters = static_cast<int64_t>(name.size() - std::min(name.find_first_not_of('-'), name.size()));
    int64_t distance = letters < 2 ? 0 : std::clamp<int64_t>(letters / 3, 1, 2);  // of a short name all are near
    for (const std::string& candidate : candidates) {
        const int64_t d = edit_distance(name, candidate);
        if (d < distance) nearest.clear();
        if (d <= distance) distance = d, nearest.push_back(candidate);
    }
    bad_option(dashed->substr(0, dashed->find('=')), "an unknown name", "an option of " + std::string(command.name),
               nearest.empty() ? program_name(on_gpu) + " " + std::string(command.name) + " --help lists them"
                               : "did you mean " + one_of(nearest, ", ", " or ") + "?");
}

}  // namespace

void Options::fill_defaults() {
    const auto wanted = std::ranges::find(presets, init.empty() ? model : "init", &Preset::name);
    const Preset& preset = wanted == std::end(presets) ? presets[0] : *wanted;
    const auto known = [&](const Row& row) { return given(row.name) || saved_.contains(row.name); };
    const auto unset = [&](const char* name) { return !given(name) && !saved_.contains(name); };
    each_row(command_bit(command), on_gpu, [&](const Row& row) {
        const std::string text = row.initial ? row.initial : preset_value(preset, row);
        if (!known(row) && !text.empty()) assign(*this, row, text);
    });
    if (command != "train") return;
    if (unset("out")) out = "out/" + std::string(preset.name);
    if (unset("seq") && context > 0) seq = std::min(seq, context);
    if (unset("warmup")) warmup = std::min(warmup, steps / 10);
    if (unset("total-batch")) total_batch = batch * seq;
    if (!init.empty() && unset("tokenizer")) tokenizer.clear();
}

// What contradicts itself, as far as no file has to be read for it.
void Options::check() const {
    if (command == "eval" && data.empty())
        bad_option("--data", "nothing", "a text file or token shards", "say what to evaluate on");
    if (command == "tokenize" && !out_path.ends_with(".bin"))
        bad_option("OUT.bin", out_path, "a name that ends in .bin", "that is how --data knows token shards");
    if (bf16 && !out_path.ends_with(".bin"))
        bad_option("--bf16", "with OUT " + out_path, "a name that ends in .bin", "directories are written in fp32");
    if (command == "tokenize" && tokenizer == "none")
        bad_option("--tokenizer", tokenizer, "byte, gpt2 or a tokenizer's file", "TEXT needs one");
    if (given("prompt") && given("prompt-ids"))
        bad_option("--prompt-ids", "with --prompt", "only one of them", "leave one of them out");
    if (command != "train") return;
    if (tokenizer == "none" && init.empty() && vocab == 0)
        bad_option("--vocab", "nothing with --tokenizer none", "the number of ids that the shards may hold",
                   "give it: ids are 0 … --vocab - 1");
    if (warmup > steps)
        bad_option("--warmup", to_text(warmup), "at most --steps " + to_text(steps), "lower --warmup or raise --steps");
    if (matmul == "tf32" && dtype != "fp32")
        bad_option("--matmul", "tf32 with --dtype " + dtype, "--dtype fp32", "products of bf16 are exact");
    if (given("muon-lr") && optimizer != "muon")
        bad_option("--muon-lr", "with --optimizer " + optimizer, "--optimizer muon", "leave one of them out");
    if (context > 0) {
        if (channels % heads != 0)
            bad_option("--channels", to_text(channels), "a multiple of --heads " + to_text(heads),
                       "change one of them");
        if (seq > context)
            bad_option("--seq", to_text(seq), "at most the model's context " + to_text(context),
                       "lower --seq or raise --context");
    }
    if (const int64_t rows = batch * seq; total_batch % rows != 0) {
        const int64_t below = total_batch / rows * rows;
        const std::string nearest = (below > 0 ? to_text(below) + " or " : "") + to_text(below + rows);
        bad_option("--total-batch", to_text(total_batch), "a multiple of batch * seq = " + to_text(rows),
                   "the nearest: " + nearest);
    }
}

std::string Options::to_json() const {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    each_row(command_bit(command), on_gpu, [&](const Row& row) {
        if (row.traits & saved) json[row.name] = value_of(*this, row);
    });
    return json.dump(2);
}

void Options::fill_from_json(const std::string& text) {
    const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
    if (!json.is_object())
        bad_option("the checkpoint's options", "no JSON object", "one", "resume from another checkpoint");
    std::set<std::string> known;
    each_row(command_bit(command), on_gpu, [&](const Row& row) {
        if (!(row.traits & saved) || !json.contains(row.name)) return;
        known.insert(row.name);
        const std::string value = text_of(row, json[row.name]);
        if (given(row.name) || (row.traits & shape && given("model"))) {
            const std::string mine = text_of(row, value_of(*this, row));
            if (row.traits & fixed && mine != value)
                bad_option(label(row), mine, value + " as in the run to resume",
                           "leave it out, or start a new run with another --out");
            return;
        }
        saved_.insert(row.name);
        const auto* path = std::get_if<Text>(&row.value);
        if (path && path->choices.empty() && !row.initial && value.empty())
            this->*path->member = "";  // --val, --init: none
        else
            assign_saved(*this, row, value);
    });
    each_row(command_bit(command), !on_gpu, [&](const Row& row) { known.insert(row.name); });  // the other program's
    for (const auto& [name, value] : json.items())
        if (!known.contains(name))
            bad_option("the checkpoint's options", name, "options of this program",
                       "resume with the program that wrote it");
    fill_defaults();
    name_shape();
    check();
}

void Options::use_model(const GPT2Config& config, const std::string& tokenizer_name) {
    layers = config.layers, heads = config.heads, channels = config.channels, context = config.context;
    vocab = config.vocab;
    fill_defaults();
    if (!given("tokenizer")) tokenizer = tokenizer_name;
    name_shape();
    check();
}

// --model by its shape, which --layers, --heads, --channels, --init or --resume may have changed.
void Options::name_shape() {
    model = "custom";
    for (const Preset& preset : presets) {
        const auto config = gpt2_preset(preset.name);
        if (config && config->layers == layers && config->heads == heads && config->channels == channels)
            model = preset.name;
    }
}

std::vector<std::pair<std::string, std::string>> Options::list() const {
    std::vector<std::pair<std::string, std::string>> all;
    each_row(command_bit(command), on_gpu,
             [&](const Row& row) { all.emplace_back(row.name, text_of(row, value_of(*this, row))); });
    return all;
}

std::string program_name(bool on_gpu) { return on_gpu ? "train_gpt2cu" : "train_gpt2"; }

Options parse_options(int argc, const char* const* argv, bool on_gpu) {
    std::vector<std::string> words(argv + 1, argv + argc);
    if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) throw HelpRequest{help_of_all(on_gpu)};
    Options options;
    options.command = "train";
    options.on_gpu = on_gpu;
    if (!words.empty() && !words[0].starts_with('-')) {
        options.command = words[0];
        words.erase(words.begin());
    }
    const auto command = std::ranges::find(commands, options.command, &Command::name);
    if (command == std::end(commands)) {
        std::vector<std::string> names;
        for (const Command& c : commands) names.push_back(c.name);
        bad_option("command", options.command, one_of(names, ", ", " or "),
                   program_name(on_gpu) + " --help explains them");
    }

    CLI::App app;
    add_rows(app, command->bit, on_gpu, options, options.given_);
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    try {
        app.parse(words);
    } catch (const CLI::CallForHelp&) {
        throw HelpRequest{help_of(*command, on_gpu)};
    } catch (const CLI::CallForVersion&) {
        throw VersionRequest{};
    } catch (const CLI::ParseError& error) {
        throw InputError(std::string(error.what()) + "; see " + program_name(on_gpu) + " " + command->name + " --help");
    }
    if (const auto rest = app.remaining(); !rest.empty()) unknown_argument(*command, on_gpu, rest);
    each_row(command->bit, on_gpu, [&](const Row& row) {
        if (row.traits & argument && !options.given(row.name))
            bad_option(row.name, "nothing", row.help, "usage: " + usage(*command, on_gpu));
        if (row.traits & shape && options.given("init") && options.given(row.name))
            bad_option(label(row), "with --init", "only one of them", "the shape comes from the file");
    });
    for (const char* name : {"model", "vocab"})
        if (options.given("init") && options.given(name))
            bad_option("--" + std::string(name), "with --init", "only one of them", "the shape comes from the file");
    if (options.given("init") && options.resume)
        bad_option("--init", "with --resume", "only one of them", "a resumed run goes on from its own checkpoint");

    options.fill_defaults();
    if (!options.resume) options.check();
    if (options.command == "train" && options.init.empty()) options.name_shape();
    return options;
}

#include "program/options.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/file/error.h"
#include "io/file/json.h"
#include "io/text/bpe_trainer.h"
#include "program/command_line.h"
#include "program/launcher.h"
#include "program/options_table.h"
#include "program/schedule.h"

namespace {

using namespace options_table;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

const Command* find_command(const std::string& name) { return std::ranges::find(commands, name, &Command::name); }

// Visits the options of a command in one of the two programs.
template <class Visit>
void each_row(const std::string& command, bool on_gpu, Visit&& visit) {
    for (const OptionRow& row : rows)
        if (row.traits & find_command(command)->bit && !(row.traits & (on_gpu ? cpu_only : gpu_only))) visit(row);
}

template <class T>
bool holds(const OptionRow& row) {
    return std::holds_alternative<T Options::*>(row.member);
}

bool is_list(const OptionRow& row) { return row.traits & argument && holds<Words>(row); }

std::string label(const OptionRow& row) { return (row.traits & argument ? "" : "--") + std::string(row.name); }

// "cosine, linear or wsd"
std::string one_of(const Words& words) {
    std::string text;
    for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 < words.size() ? ", " : " or ") + words[i];
    return text;
}

// The words that the option accepts; empty if it accepts any text or number.
Words choices(const OptionRow& row) {
    if (holds<bool>(row)) return {"true", "false"};
    const bool any = std::string(row.unit).find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") != std::string::npos;
    Words words;
    std::istringstream unit(any ? "" : row.unit);
    for (std::string word; std::getline(unit, word, '|');) words.push_back(word);
    return words;
}

void refuse_if(bool wrong, const std::string& message) {
    if (wrong) throw InputError(message);
}

std::string to_text(double x) {
    if (x == std::trunc(x) && std::abs(x) < 1e15) return std::to_string(static_cast<int64_t>(x));
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, x).ptr};
}

template <class Value>
bool parse_value(const OptionRow& row, const std::string& text, Value& value) {  // a number, "true" or "false"
    std::istringstream in(text);
    in >> std::noskipws >> std::boolalpha >> value;
    const auto number = static_cast<double>(value);
    return in && in.peek() == EOF && text[0] != '+' && row.low <= number && number <= row.high;
}
bool parse_value(const OptionRow& row, const std::string& text, std::string& value) {
    value = text;
    const Words words = choices(row);
    return !text.empty() && (words.empty() || std::ranges::count(words, text) > 0);
}

bool parse_value(const OptionRow& row, const std::string& text, Words& value) {  // one of several
    std::string word;
    if (!parse_value(row, text, word)) return false;
    value.push_back(word);
    return true;
}

// "--batch: invalid value -3; give a whole number from 1 to 65536"
[[noreturn]] void refuse_value(const OptionRow& row, const std::string& text) {
    const Words words = choices(row);
    std::string values = words.empty() ? std::string("give ") + row.unit : "choose " + one_of(words);
    if (holds<int64_t>(row) || holds<double>(row))
        values = std::string("give a ") + (holds<int64_t>(row) ? "whole " : "") + "number from " + to_text(row.low) +
                 " to " + to_text(row.high);
    throw InputError(label(row) + ": " + (text.empty() ? "no value" : "invalid value " + text) + "; " + values);
}

// Sets the option's member from its text, or several texts, on the command line, in the table or in a checkpoint.
void assign(Options& options, const OptionRow& row, const Words& texts) {
    if (const auto* several = std::get_if<Words Options::*>(&row.member)) (options.**several).clear();
    for (const std::string& text : texts) {
        const auto parse = [&](auto member) { return parse_value(row, text, options.*member); };
        if (!std::visit(parse, row.member)) refuse_value(row, text);
    }
}

void clear_text(Options& options, const OptionRow& row) {
    if (const auto* several = std::get_if<Words Options::*>(&row.member))
        (options.**several).clear();
    else
        (options.*std::get<std::string Options::*>(row.member)).clear();
}

// One of several texts is saved as one text is.
Json value_of(const Options& options, const OptionRow& row) {
    if (const auto* path = std::get_if<std::string Options::*>(&row.member)) return json_of_path(options.**path);
    if (const auto* several = std::get_if<Words Options::*>(&row.member)) {
        const Words& texts = options.**several;
        if (texts.size() < 2) return json_of_path(texts.empty() ? "" : texts[0]);
        Json all = Json::array();
        for (const std::string& text : texts) all.push_back(Json(json_of_path(text)));
        return all;
    }
    return std::visit([&](auto member) { return Json(options.*member); }, row.member);
}

// Words and paths as they are on the command line, numbers in their shortest form.
Words texts_of(const OptionRow& row, const Json& value) {
    if (value.is_string()) return {value.get<std::string>()};
    const bool several = holds<Words>(row);
    if (const auto path = path_of_json(value); path && (several || holds<std::string>(row))) return {*path};
    Words texts;
    if (several && value.is_array())
        for (const Json& item : value)
            if (const auto path = path_of_json(item)) texts.push_back(*path);
    if (!texts.empty()) return texts;
    return {value.is_number_float() ? to_text(value.get<double>()) : value.dump()};
}

std::string text_of(const OptionRow& row, const Json& value) {
    std::string all;
    for (const std::string& text : texts_of(row, value)) all += (all.empty() ? "" : ", ") + text;
    return all;
}

// The row's default for this model: one number of "tiny 16, others 4". "" if there is none.
std::string default_of(const OptionRow& row, const std::string& model) {
    if (row.initial.starts_with('(')) return "";
    if (row.initial.find(' ') == std::string::npos) return row.initial;
    std::istringstream words(row.initial);
    for (std::string name, value; words >> name >> value;)
        if (name == model || name == "others") return value.substr(0, value.find(','));
    return "";
}

// A line of help in two columns. The right column is broken into lines of at most 79 characters, at spaces but not at
// ~.
std::string columns(const std::string& left, const std::string& right) {
    constexpr size_t indent = 25, width = 79;
    std::string text = "  " + left, line;
    text.resize(std::max(text.size(), indent), ' ');
    if (text.size() > indent) text += "\n" + std::string(indent, ' ');
    std::istringstream words(right);
    for (std::string word; words >> word; line += (line.empty() ? "" : " ") + word) {
        if (indent + line.size() + 1 + word.size() <= width) continue;
        text += line + "\n" + std::string(indent, ' ');
        line.clear();
    }
    text += line + "\n";
    std::ranges::replace(text, '~', ' ');
    return text;
}

// The range and the default, as help prints them: "[1 to 65536; default: 4]".
std::string facts(const OptionRow& row) {
    std::string text;
    if (holds<int64_t>(row) || holds<double>(row))
        text = row.high < 1e12 ? to_text(row.low) + " to " + to_text(row.high) : "at least " + to_text(row.low);
    std::string initial = row.initial == "\n" ? "a line break" : row.initial;
    if (initial.starts_with('(')) initial = initial.substr(1, initial.size() - 2);
    if (!initial.empty()) text += (text.empty() ? "" : "; ") + ("default: " + initial);
    if (text.empty()) return "";
    if (text.size() < 50) std::ranges::replace(text, ' ', '~');  // one word for columns()
    return " [" + text + "]";
}

std::string usage(const std::string& command, bool on_gpu) {
    std::string text = program_name(on_gpu) + " " + (command == "train" ? "[train]" : command);
    each_row(command, on_gpu, [&](const OptionRow& row) { text += row.traits & argument ? " " + label(row) : ""; });
    return text + " [OPTIONS]";
}

std::string help_of(const Command& command, bool on_gpu) {
    std::string text = "Usage: " + usage(command.name, on_gpu) + "\n\n" + command.help + "\n";
    const OptionRow* heading = nullptr;
    each_row(command.name, on_gpu, [&](const OptionRow& row) {
        const OptionRow* own = &row;
        while (own->traits) --own;
        if (own != std::exchange(heading, own)) text += "\n" + std::string(own->name) + ":\n";
        const bool bare = row.traits & argument || holds<bool>(row);
        text += columns(label(row) + (bare ? "" : std::string(" ") + row.unit), row.help + facts(row));
    });
    return text;
}

std::string help_of_all(bool on_gpu) {
    const std::string name = program_name(on_gpu);
    std::string text = name + " trains GPT-2 on " + (on_gpu ? "an NVIDIA GPU" : "a CPU") +
                       ", from text to samples.\n\nUsage: " + name + " [COMMAND] [OPTIONS]\n\nCommands:\n";
    for (const Command& command : commands) text += columns(command.name, command.help);
    text += examples;
    for (size_t at = 0; (at = text.find("PROGRAM", at)) != std::string::npos;) text.replace(at, 7, name);
    for (const Command& command : commands) text += "\n\n" + help_of(command, on_gpu);
    return text;
}

// Whether at most `edits` edits turn a into b: a character inserted, deleted, replaced or swapped with its neighbour.
bool is_near(std::string_view a, std::string_view b, size_t edits) {
    if (a.empty() || b.empty()) return a.size() + b.size() <= edits;
    if (a[0] == b[0]) return is_near(a.substr(1), b.substr(1), edits);
    if (edits == 0) return false;
    if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0] && is_near(a.substr(2), b.substr(2), edits - 1))
        return true;
    return is_near(a.substr(1), b, edits - 1) || is_near(a, b.substr(1), edits - 1) ||
           is_near(a.substr(1), b.substr(1), edits - 1);
}

[[noreturn]] void refuse_unknown(const Options& options, const Words& arguments) {
    const auto dashed = std::ranges::find_if(arguments, [](const std::string& a) { return a.starts_with('-'); });
    refuse_if(dashed == arguments.end(),
              arguments[0] + ": unexpected argument; put a glob or a text with spaces into quotes");
    const std::string option = dashed->substr(0, dashed->find('='));
    std::string name = option;
    std::ranges::replace(name, '_', '-');
    const size_t letters = name.size() - std::min(name.find_first_not_of('-'), name.size());
    Words names = {"--help", "--version"}, nearest;
    each_row(options.command, options.on_gpu, [&](const OptionRow& row) { names.push_back(label(row)); });
    for (size_t edits = 0; letters > 1 && edits <= std::clamp<size_t>(letters / 3, 1, 2) && nearest.empty(); ++edits)
        std::ranges::copy_if(names, std::back_inserter(nearest),
                             [&](const std::string& n) { return is_near(name, n, edits); });
    throw InputError(option + ": unknown option of " + options.command + "; " +
                     (nearest.empty() ? "see " + program_name(options.on_gpu) + " " + options.command + " --help"
                                      : "did you mean " + one_of(nearest) + "?"));
}

// Reads the words after the command into options.
void parse_words(Options& options, std::set<std::string>& given, const Words& words) {
    std::vector<command_line::Option> labels;
    each_row(options.command, options.on_gpu, [&](const OptionRow& row) {
        labels.push_back({label(row), holds<bool>(row), is_list(row)});
    });
    const command_line::Parsed parsed = command_line::parse(labels, words);
    if (parsed.help) throw HelpRequest{help_of(*find_command(options.command), options.on_gpu)};
    if (parsed.version) throw VersionRequest{};
    if (!parsed.error.empty()) {
        each_row(options.command, options.on_gpu, [&](const OptionRow& row) {
            if (!words.empty() && words.back() == label(row)) refuse_value(row, "");
        });
        throw InputError(parsed.error);
    }
    Words list;  // RUN... takes all arguments, of which the last is the row below it
    auto next = parsed.values.begin();
    each_row(options.command, options.on_gpu, [&](const OptionRow& row) {
        Words values = *next++;
        if (row.traits & argument && !list.empty()) values = {list.back()};
        if (is_list(row)) list = values;
        if (is_list(row) && !values.empty()) values.pop_back();
        refuse_if(values.size() > 1 && !holds<bool>(row) && !holds<Words>(row),
                  label(row) + ": given " + std::to_string(values.size()) + " times; give it once");
        if (values.empty()) return;
        assign(options, row, values);
        given.insert(row.name);
    });
    if (!parsed.rest.empty()) refuse_unknown(options, parsed.rest);
}

}  // namespace

void Options::fill_defaults() {
    if (gpt2_preset(model)) preset_ = model;
    const std::string preset = init.empty() ? preset_ : "--init";
    const auto unset = [&](const char* name) { return !given(name) && !saved_.contains(name); };
    each_row(command, on_gpu, [&](const OptionRow& row) {
        if (const std::string text = default_of(row, preset); unset(row.name) && !text.empty())
            assign(*this, row, {text});
    });
    const bool bytes = command == "tokenize" || (command == "train" && init.empty());
    if (unset("tokenizer")) tokenizer = bytes ? "byte" : "";  // the model's own
    if (command != "train") return;
    if (out.empty()) out = "out/" + (init.empty() ? preset : "init");
    const bool chosen_later = (minutes > 0 || hours > 0) && init.empty() && !given("model");  // by choose_recipe()
    if (chosen_later && unset("context") && given("seq")) context = std::max(context, seq);
    if (unset("seq") && context > 0) seq = std::min(seq, context);
    if (unset("warmup")) warmup = std::min(warmup, steps / 10);
    if (unset("decay-frac")) decay_frac = schedule == "wsd" ? 0.2 : 1;
    if (unset("shards")) shards = ranks;
    if (unset("total-batch")) total_batch = batch * seq * shards;
}

// Refuses options that contradict each other, as far as this can be checked without reading a file.
void Options::check() const {
    const auto text = [](int64_t x) { return std::to_string(x); };
    const std::string launcher = Launcher().name();
    refuse_if(ranks > 1 && command != "train",
              launcher + ": " + command + " runs in one process; start it without " + launcher);
    refuse_if(command == "eval" && data.empty() && choices.empty(),
              "--data: missing; give a text file or token shards to evaluate on, or examples with --choices");
    refuse_if(command == "eval" && data.empty() && given("stride"), "--stride: is for --data; leave it out");
    refuse_if(choices.empty() && given("limit"), "--limit: is for --choices; leave it out");
    const std::string suffix = train_tokenizer ? ".json" : ".bin";
    refuse_if(command == "tokenize" && !out_path.ends_with(suffix),
              "OUT: " + out_path + " does not end in " + suffix + "; give a name that does");
    refuse_if(command == "report" && !out_path.ends_with(".html"),
              "OUT: " + out_path + " does not end in .html; give the page a name that does");
    refuse_if(train_tokenizer && vocab == 0, "--vocab: missing with --train; give a number of tokens, such as 4096");
    refuse_if(superwords && !train_tokenizer, "--superwords: is for --train; leave it out");
    refuse_if(command == "tokenize" && vocab > 0 && !train_tokenizer, "--vocab: is for --train; leave it out");
    refuse_if(command == "tokenize" && tokenizer == "none",
              "--tokenizer: none cannot read TEXT; choose byte, gpt2 or a tokenizer file");
    if (command != "train") return;
    refuse_if(tokenizer == "none" && init.empty() && vocab == 0,
              "--vocab: missing with --tokenizer none; give a number above every token id of the shards");
    refuse_if(patience > 0 && eval_every == 0,
              "--patience: counts evaluations, and --eval-every is 0; set it to a number of steps");
    refuse_if(
        trained_vocabulary_size(tokenizer) > 0 && !init.empty(),
        "--tokenizer: " + tokenizer + " learns new tokens, which the model of --init does not know; leave it out");
    refuse_if(warmup > steps,
              "--warmup: " + text(warmup) + " is more than --steps " + text(steps) + "; change one of them");
    refuse_if(!parse_replanned(replanned, steps),
              "--replanned: " + replanned + " does not say STEP:STEPS,... with rising steps below --steps " +
                  text(steps) + ", each below its STEPS; change it or leave it out");
    refuse_if(matmul == "tf32" && dtype != "fp32",
              "--matmul: tf32 is for --dtype fp32, not " + dtype + "; change one of them");
    refuse_if(given("muon-lr") && optimizer == "adamw", "--muon-lr: is for --optimizer muon and normuon, not " +
                                                            optimizer + "; leave it out or choose one of them");
    refuse_if(context > 0 && channels % heads != 0, "--channels: " + text(channels) + " is not a multiple of --heads " +
                                                        text(heads) + "; change one of them");
    refuse_if(context > 0 && seq > context, "--seq: " + text(seq) + " is more than the model's context " +
                                                text(context) + "; give at most " + text(context));
    const int64_t one = batch * seq, below = total_batch / one * one;
    const std::string nearest = (below > 0 ? text(below) + " or " : "") + text(below + one);
    const auto power_below = [](int64_t x) { return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(x))); };
    refuse_if(power_below(ranks) != ranks, launcher + ": " + text(ranks) + " processes are not a power of two; start " +
                                               text(power_below(ranks)) + " or " + text(2 * power_below(ranks)));
    refuse_if(power_below(shards) != shards,
              "--shards: " + text(shards) + " is not a power of two; choose " + text(power_below(shards)));
    refuse_if(shards < ranks, "--shards: " + text(ranks) + " processes cannot share " + text(shards) +
                                  (resume ? " shards, which the run has; start at most " + text(shards)
                                          : " shards; start fewer, or give --shards " + text(ranks)));
    const int64_t batches = total_batch / one;
    refuse_if(total_batch % one != 0, "--total-batch: " + text(total_batch) +
                                          " is not a multiple of batch * seq = " + text(one) + "; choose " + nearest);
    refuse_if(batches % shards != 0, "--shards: " + text(shards) + " does not divide the " + text(batches) +
                                         " batches of a step, which are total-batch / (batch * seq); choose " +
                                         text(int64_t{1} << std::countr_zero(static_cast<uint64_t>(batches))) +
                                         " or another --total-batch");
}

std::string Options::to_json() const {
    Json json = Json::object();
    each_row(command, on_gpu, [&](const OptionRow& row) {
        if (!(row.traits & unsaved)) json[row.name] = value_of(*this, row);
    });
    return json.dump(2);
}

void Options::fill_from_json(const std::string& text) {
    auto json = Json::parse(text, nullptr, false);
    const std::string where = "the checkpoint's options: ";
    refuse_if(!json.is_object(), where + "not a JSON object; resume from another checkpoint");
    if (!json.contains("shards")) json["shards"] = 1;  // saved by a version without them
    if (!json.contains("documents")) json["documents"] = false;
    if (!json.contains("text-mb")) json["text-mb"] = 0;
    std::set<std::string> known;
    each_row(command, !on_gpu,
             [&](const OptionRow& row) { known.insert(row.name); });  // the other program's are ignored
    each_row(command, on_gpu, [&](const OptionRow& row) {
        if (row.traits & unsaved || !json.contains(row.name)) return;
        known.insert(row.name);
        const Words values = texts_of(row, json[row.name]);
        if (given(row.name) || (row.traits & shape && given("model"))) {
            const std::string mine = text_of(row, value_of(*this, row)), before = text_of(row, json[row.name]);
            refuse_if(row.traits & fixed && mine != before,
                      label(row) + ": " + mine + " differs from " + before + " in the run to resume; leave it out");
            return;
        }
        saved_.insert(row.name);
        try {
            if (row.traits & optional && values == Words{""}) return clear_text(*this, row);
            assign(*this, row, values);
        } catch (const InputError& error) {
            throw InputError(where + error.what());
        }
    });
    for (const auto& [name, value] : json.items())
        refuse_if(!known.contains(name),
                  where + name + " is not an option of this program; resume with the program that wrote it");
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

void Options::choose(const std::vector<std::pair<std::string, std::string>>& values) {
    each_row(command, on_gpu, [&](const OptionRow& row) {
        const auto choice = std::ranges::find(values, row.name, &std::pair<std::string, std::string>::first);
        if (choice == values.end() || given(row.name)) return;
        assign(*this, row, {choice->second});
        saved_.insert(row.name);
    });
    fill_defaults();
    name_shape();
    check();
}

std::string Options::chosen() const {
    std::string text;
    for (const auto& [name, value] : list())
        if (saved_.contains(name)) text += " --" + name + " " + value;
    return text;
}

// Sets --model by the shape, which --layers, --heads, --channels, --init or --resume may have changed.
void Options::name_shape() {
    model = "custom";
    for (const char* name : models)
        if (const auto config = *gpt2_preset(name);
            config.layers == layers && config.heads == heads && config.channels == channels)
            model = name;
}

std::vector<std::pair<std::string, std::string>> Options::list() const {
    std::vector<std::pair<std::string, std::string>> all;
    each_row(command, on_gpu,
             [&](const OptionRow& row) { all.emplace_back(row.name, text_of(row, value_of(*this, row))); });
    return all;
}

std::string program_name(bool on_gpu) { return on_gpu ? "train_gpt2cu" : "train_gpt2"; }

Options parse_options(int argc, const char* const* argv, bool on_gpu, int64_t ranks) {
    Words words(argv + 1, argv + argc);
    if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) throw HelpRequest{help_of_all(on_gpu)};
    Options options;
    options.command = "train";
    options.on_gpu = on_gpu;
    options.ranks = ranks;
    if (!words.empty() && !words[0].starts_with('-')) {
        options.command = words[0];
        words.erase(words.begin());
    }
    Words names;
    for (const Command& command : commands) names.push_back(command.name);
    refuse_if(!std::ranges::count(names, options.command),
              options.command + ": unknown command; choose " + one_of(names));

    parse_words(options, options.given_, words);
    each_row(options.command, on_gpu, [&](const OptionRow& row) {
        refuse_if(row.traits & argument && !options.given(row.name),
                  label(row) + ": missing; usage: " + usage(options.command, on_gpu));
    });
    for (const auto& [name, other] : exclusive)
        refuse_if(options.given(name) && options.given(other),
                  std::string("--") + name + ": cannot be used with --" + other + "; leave one of them out");
    options.fill_defaults();
    if (!options.resume) options.check();
    if (options.command == "train" && options.init.empty()) options.name_shape();
    return options;
}

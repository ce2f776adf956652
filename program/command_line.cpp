#include "program/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>

command_line::Parsed command_line::parse(const std::vector<Option>& options, std::vector<std::string> words) {
    CLI::App app;
    app.set_help_flag("-h,--help");
    app.set_version_flag("--version");
    app.allow_extras();
    for (const Option& option : options) {
        CLI::Option* added = option.is_flag ? app.add_flag(option.label) : app.add_option(option.label)->expected(1);
        if (option.is_list) added->expected(-1);
        added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    Parsed parsed;
    std::ranges::reverse(words);  // CLI11 takes them from the back
    try {
        app.parse(words);
    } catch (const CLI::CallForHelp&) {
        parsed.help = true;
        return parsed;
    } catch (const CLI::CallForVersion&) {
        parsed.version = true;
        return parsed;
    } catch (const CLI::ParseError& error) {
        parsed.error = error.what();
        return parsed;
    }
    for (const Option& option : options) parsed.values.push_back(app.get_option(option.label)->results());
    parsed.rest = app.remaining();
    return parsed;
}

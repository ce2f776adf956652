#include "program/exit_status.h"

#include <cstdio>
#include <filesystem>
#include <new>

#include "io/file/error.h"
#include "program/device_model.h"
#include "program/options.h"
#include "program/version.h"

void print_error(const std::string& message) {
    std::fprintf(stderr, "%s: %s\n", program_name().c_str(), message.c_str());
}

Failure current_failure() {
    try {
        throw;
    } catch (const RankFailed& failure) {
        return {failure.status, failure.what()};
    } catch (const InputError& error) {
        return {2, error.what()};
    } catch (const std::filesystem::filesystem_error& error) {
        return {2, error.path1().string() + ": " + error.code().message() + "; check the path and the disk"};
    } catch (const std::bad_alloc&) {
        return {2, "out of memory; make the model, --batch or --seq smaller"};
    } catch (const std::exception& fault) {  // a device error, or a failed check
        return {1, fault.what()};
    }
}

namespace {

int run_or_print_help(const std::function<int()>& command) {
    try {
        return command();
    } catch (const HelpRequest& help) {
        std::fputs(help.text.c_str(), stdout);
    } catch (const VersionRequest&) {
        std::fputs(version_text().c_str(), stdout);
    }
    return 0;
}

}  // namespace

int exit_status(const std::function<int()>& command) {
    try {
        const int status = run_or_print_help(command);
        if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return status;
        throw InputError("standard output: write failed (disk full?)");
    } catch (const std::exception&) {
        const Failure failure = current_failure();
        if (!failure.message.empty()) print_error(failure.message);
        return failure.status;
    }
}

// The width of the terminal on standard output.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

// Columns, as they are now: the user may resize it. Where the terminal does not say, the shell's COLUMNS; else 80.
inline size_t terminal_columns() {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    const char* columns = std::getenv("COLUMNS");
    const int n = columns ? std::atoi(columns) : 0;
    return n > 0 ? static_cast<size_t>(n) : 80;
}

// The text that fits on one row of `columns` columns; the last column stays empty, as a cursor behind it would wrap.
inline std::string cut_to_row(const std::string& text, size_t columns) {
    return text.substr(0, columns > 1 ? columns - 1 : 1);
}

// The width of the terminal on standard output.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

// The current number of columns, as the user may resize the terminal. If the terminal does not report it, the number is
// the shell's COLUMNS, or 80.
inline size_t terminal_columns() {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    const char* columns = std::getenv("COLUMNS");
    const int n = columns ? std::atoi(columns) : 0;
    return n > 0 ? static_cast<size_t>(n) : 80;
}

// The text cut to one row of `columns` columns. The last column stays empty, because the cursor after it would wrap.
inline std::string cut_to_row(const std::string& text, size_t columns) {
    return text.substr(0, columns > 1 ? columns - 1 : 1);
}

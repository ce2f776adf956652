// Which rows of an embedding's gradients a step has written to: the rest, most of them, is 0, and need not be read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

// Of a matrix (rows,columns) at the beginning of a buffer. Nothing is known of what is behind it.
struct UsedRows {
    const uint8_t* used = nullptr;  // (rows): 0 or 1; 0: all of the row is 0. Null: nothing is known of any row.
    int64_t rows = 0, columns = 0;

    bool known() const { return used != nullptr; }
    int64_t count() const { return known() ? std::count(used, used + rows, 1) : 0; }
    // Whether one of the values begin … end-1 of the buffer may not be 0.
    bool any(int64_t begin, int64_t end) const {
        if (!known() || end > rows * columns) return true;
        const int64_t first = begin / columns, last = (end - 1) / columns;
        return std::memchr(used + first, 1, static_cast<size_t>(last - first + 1)) != nullptr;
    }
};

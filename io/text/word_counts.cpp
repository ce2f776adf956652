#include "io/text/word_counts.h"

#include <omp.h>

#include <exception>
#include <functional>

#include "io/file/utf8.h"
#include "io/text/pre_tokenizer.h"

WordCounts::WordCounts() : slots_(1024) {}

void WordCounts::add(std::string_view word, int64_t count) {
    const size_t hash = std::hash<std::string_view>{}(word), mask = slots_.size() - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        Slot& slot = slots_[i];
        if (slot.count == 0) {
            slot = {hash, bytes_.size(), word.size(), count};
            bytes_ += word;
            if (2 * ++size_ > std::ssize(slots_)) grow();
            return;
        }
        if (slot.hash == hash && std::string_view(bytes_).substr(slot.begin, slot.length) == word) {
            slot.count += count;
            return;
        }
    }
}

void WordCounts::grow() {
    std::vector<Slot> old(4 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
        if (slot.count == 0) continue;
        size_t i = slot.hash & (slots_.size() - 1);
        while (slots_[i].count > 0) i = (i + 1) & (slots_.size() - 1);
        slots_[i] = slot;
    }
}

void WordCounts::add_pieces(std::span<const TextPiece> pieces, const AddedTokens& added) {
    const PreTokenizer pre_tokenizer;
    std::vector<WordCounts> of_threads(static_cast<size_t>(omp_get_max_threads()));
    std::exception_ptr error;
#pragma omp parallel
    {
        WordCounts& own = of_threads[static_cast<size_t>(omp_get_thread_num())];
        std::string replaced;
#pragma omp for schedule(dynamic) nowait
        for (size_t i = 0; i < pieces.size(); ++i) {
            try {
                std::string_view piece = pieces[i].text;
                if (find_invalid_utf8(piece) < piece.size()) piece = replaced = replace_invalid_utf8(piece);
                added.split(
                    piece,
                    [&](std::string_view part) {
                        pre_tokenizer.split(part, [&](std::string_view word) { own.add(word); });
                    },
                    [](int32_t) {});
            } catch (...) {  // an exception must not leave a parallel region
#pragma omp critical
                error = std::current_exception();
            }
        }
    }
    if (error) std::rethrow_exception(error);
    for (const WordCounts& own : of_threads) own.each([&](std::string_view word, int64_t count) { add(word, count); });
}

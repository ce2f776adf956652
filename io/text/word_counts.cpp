#include "io/text/word_counts.h"

#include <omp.h>

#include <exception>
#include <string>
#include <vector>

#include "io/file/utf8.h"

void WordCounts::add_pieces(std::span<const TextPiece> pieces, const AddedTokens& added, Pieces kind) {
    const PreTokenizer pre_tokenizer(kind);
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
                        pre_tokenizer.split(part, [&](std::string_view word, bool) { own.add(word); });
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

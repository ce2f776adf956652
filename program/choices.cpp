#include "program/choices.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include "io/file/checksum.h"
#include "io/file/error.h"

namespace {

// An example with one of its endings, without the first tokens if that is more than the model sees.
struct Row {
    size_t example, ending;
    int64_t length;  // predictions: one less than tokens
    int64_t scored;  // how many of the last ones predict the ending
};

// The longest first, so that rows that are computed together have similar lengths.
std::vector<Row> rows_of(const ExampleSet& set, int64_t seq) {
    std::vector<Row> rows;
    for (size_t i = 0; i < set.examples.size(); ++i)
        for (size_t e = 0; e < set.examples[i].endings.size(); ++e) {
            const int64_t ending = std::ssize(set.examples[i].endings[e]);
            const int64_t length = std::min(std::ssize(set.examples[i].context) + ending - 1, seq);
            rows.push_back({i, e, length, std::min(ending, length)});
        }
    std::ranges::stable_sort(rows, std::greater{}, &Row::length);
    return rows;
}

void write_row(const ExampleSet& set, const Row& row, int32_t* x, int32_t* y) {
    const Example& example = set.examples[row.example];
    std::vector<int32_t> tokens = example.context;
    tokens.insert(tokens.end(), example.endings[row.ending].begin(), example.endings[row.ending].end());
    std::copy_n(tokens.end() - row.length - 1, row.length, x);
    std::copy_n(tokens.end() - row.length, row.length, y);
}

struct Score {
    double nats = 0;
    int64_t tokens = 0;
    bool greedy = false;  // every token of the ending is the model's first choice; only known of last words
    double mean() const { return nats / static_cast<double>(tokens); }
};

// Whether the target has the largest logit at each of `count` positions of the last forward pass. Of equal logits the
// first counts as the largest, as in torch.argmax.
bool is_greedy(Model& model, int64_t first, int64_t count, const int32_t* targets) {
    std::vector<float> logits(static_cast<size_t>(model.config.vocab));
    for (int64_t n = first; n < first + count; ++n) {
        model.token_logits(logits.data(), n);
        if (std::ranges::max_element(logits) - logits.begin() != targets[n]) return false;
    }
    return true;
}

// The rows in the order of the ranks that compute them: each computes every count()-th pass.
struct SharedRows {
    std::vector<Row> rows;
    std::vector<int64_t> cuts{0};        // where each rank's rows begin, and where the last one's end
    std::vector<std::span<Row>> passes;  // this rank's
};

SharedRows share(const std::vector<Row>& rows, int64_t tokens_of_pass, Ranks& ranks) {
    std::vector<std::span<const Row>> passes;
    for (size_t i = 0; i < rows.size(); i += passes.back().size())
        passes.push_back(std::span(rows).subspan(
            i, std::min(static_cast<size_t>(tokens_of_pass / rows[i].length), rows.size() - i)));
    SharedRows shared;
    shared.rows.reserve(rows.size());
    const auto count = static_cast<size_t>(ranks.count());
    for (size_t rank = 0; rank < count; ++rank) {
        for (size_t p = rank; p < passes.size(); p += count) {
            shared.rows.insert(shared.rows.end(), passes[p].begin(), passes[p].end());
            if (rank == static_cast<size_t>(ranks.rank()))
                shared.passes.push_back(std::span(shared.rows).last(passes[p].size()));
        }
        shared.cuts.push_back(std::ssize(shared.rows));
    }
    return shared;
}

// The rows of a pass, one score each.
std::vector<Score> scores_of(Model& model, const ExampleSet& set, std::span<const Row> rows) {
    const int64_t T = rows[0].length, B = std::ssize(rows);
    // Attention is causal: what fills the end of a shorter row does not change the predictions before it.
    std::vector<int32_t> x(static_cast<size_t>(B * T)), y(x.size());
    std::vector<float> losses(x.size());
    for (int64_t b = 0; b < B; ++b) write_row(set, rows[static_cast<size_t>(b)], &x[b * T], &y[b * T]);
    model.token_losses(losses.data(), x.data(), y.data(), B, T);
    std::vector<Score> scores;
    for (int64_t b = 0; b < B; ++b) {
        const Row& row = rows[static_cast<size_t>(b)];
        const int64_t first = b * T + row.length - row.scored;
        const double nats = std::accumulate(&losses[first], &losses[first] + row.scored, 0.0);
        const bool is_first_choice =
            std::isfinite(nats) && set.last_word && is_greedy(model, first, row.scored, y.data());
        scores.push_back({.nats = nats, .tokens = row.scored, .greedy = is_first_choice});
    }
    return scores;
}

ChoicesResult count_right(const ExampleSet& set, const std::vector<std::vector<Score>>& scores) {
    ChoicesResult result{.last_word = set.last_word, .examples = std::ssize(set.examples)};
    for (size_t i = 0; i < scores.size(); ++i) {
        const auto is_right = [&](const auto& best) { return best - scores[i].begin() == set.examples[i].label; };
        const Score& right = scores[i][static_cast<size_t>(set.examples[i].label)];
        result.nats += right.nats;
        result.by_sum += set.last_word ? right.greedy : is_right(std::ranges::min_element(scores[i], {}, &Score::nats));
        result.by_mean +=
            set.last_word ? right.greedy : is_right(std::ranges::min_element(scores[i], {}, &Score::mean));
    }
    return result;
}

double standard_error(double p, int64_t n) { return std::sqrt(p * (1 - p) / static_cast<double>(n)); }

}  // namespace

double ChoicesResult::accuracy() const {
    return static_cast<double>(last_word ? by_sum : by_mean) / static_cast<double>(examples);
}

std::string ChoicesResult::text() const {
    const double n = static_cast<double>(examples);
    const double sum = static_cast<double>(by_sum) / n, mean = static_cast<double>(by_mean) / n;
    char line[256];
    if (last_word)
        std::snprintf(line, sizeof line, "last word: accuracy %.4f +- %.4f, perplexity %.4f (%lld examples)", sum,
                      standard_error(sum, examples), std::exp(nats / n), static_cast<long long>(examples));
    else
        std::snprintf(line, sizeof line,
                      "accuracy by summed log-likelihood %.4f +- %.4f, by mean log-likelihood %.4f +- %.4f (%lld "
                      "examples)",
                      sum, standard_error(sum, examples), mean, standard_error(mean, examples),
                      static_cast<long long>(examples));
    return line;
}

int64_t tokens_to_evaluate(const ExampleSet& set, int64_t seq) {
    int64_t tokens = 0;
    for (const Row& row : rows_of(set, seq)) tokens += row.length;
    return tokens;
}

std::string long_examples_note(const ExampleSet& set, int64_t seq) {
    const auto is_long = [&](const Example& example) {
        return std::ranges::any_of(example.endings, [&](const std::vector<int32_t>& ending) {
            return std::ssize(example.context) + std::ssize(ending) - 1 > seq;
        });
    };
    const int64_t count = std::ranges::count_if(set.examples, is_long);
    if (count == 0) return "";
    return set.source + ": " + std::to_string(count) + " of " + std::to_string(set.examples.size()) +
           " examples are longer than the " + std::to_string(seq) +
           " tokens that the model sees; the model sees their "
           "last tokens";
}

uint32_t fingerprint(const ExampleSet& set) {
    uint32_t crc = 0;
    const auto add = [&](int64_t value) { crc = checksum(&value, sizeof value, crc); };
    const auto add_tokens = [&](const std::vector<int32_t>& tokens) {
        add(std::ssize(tokens));
        crc = checksum(tokens.data(), std::ssize(tokens) * static_cast<int64_t>(sizeof(int32_t)), crc);
    };
    add(set.last_word);
    for (const Example& example : set.examples) {
        add(example.label);
        add_tokens(example.context);
        add(std::ssize(example.endings));
        for (const auto& ending : example.endings) add_tokens(ending);
    }
    return crc;
}

std::optional<ChoicesResult> evaluate_choices(Model& model, const ExampleSet& set, int64_t batch, int64_t seq,
                                              const std::function<bool(int64_t)>& between, Ranks& ranks) {
    const std::vector<Row> rows = rows_of(set, seq);
    const SharedRows shared = share(rows, batch * seq, ranks);
    std::vector<Score> found(shared.rows.size());
    int64_t place = shared.cuts[static_cast<size_t>(ranks.rank())], done = 0;
    bool go_on = true, finite = true;
    for (size_t pass = 0; finite && pass < shared.passes.size(); ++pass) {
        go_on = between(done);
        if (!go_on) break;
        for (const Row& row : shared.passes[pass]) done += row.length;
        for (const Score& score : scores_of(model, set, shared.passes[pass])) {
            finite = finite && std::isfinite(score.nats);
            found[static_cast<size_t>(place++)] = score;
        }
    }
    if (largest(ranks, go_on ? 0 : 1) > 0) return std::nullopt;
    all_gather(ranks, found.data(), shared.cuts);
    std::vector<std::vector<Score>> scores;
    for (const Example& example : set.examples) scores.emplace_back(example.endings.size());
    for (size_t i = 0; i < found.size(); ++i) scores[shared.rows[i].example][shared.rows[i].ending] = found[i];
    for (const Row& row : rows)  // the first of them in the order of one rank, which is the same for all
        if (!std::isfinite(scores[row.example][row.ending].nats))
            throw CheckFailed(set.source + ": the loss of example " + std::to_string(row.example) +
                              " is NaN or infinite; use another checkpoint");
    return count_right(set, scores);
}

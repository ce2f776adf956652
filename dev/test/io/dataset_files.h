// Shards and texts for the tests of datasets, and a tokenizer of bytes that counts what it encodes.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "dev/test/test_directory.h"
#include "io/data/dataset.h"

class Bytes : public Tokenizer {
public:
    explicit Bytes(int64_t vocab = 256, std::string name = "byte") : vocab_(vocab), name_(std::move(name)) {
        for (int i = 0; i < 256; i++) all_.push_back(static_cast<char>(i));
    }
    int64_t vocab() const override { return vocab_; }
    int32_t end_of_text() const override { return -1; }
    const std::string& name() const override { return name_; }
    std::vector<int32_t> encode(std::string_view text) const override {
        encoded_bytes += std::ssize(text);
        std::vector<int32_t> ids;
        for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
        return ids;
    }
    std::string_view token(int32_t id) const override { return std::string_view(all_).substr(id % 256, 1); }
    std::vector<WrittenFile> save_hugging_face(const std::string&) const override { return {}; }
    mutable std::atomic<int64_t> encoded_bytes = 0;

private:
    int64_t vocab_;
    std::string name_, all_;
};

class DatasetFiles : public TestDirectory {
protected:
    std::string path(const std::string& name) const { return directory + "/" + name; }
    std::string write(const std::string& name, const std::string& bytes) const {
        std::ofstream(path(name), std::ios::binary) << bytes;
        return path(name);
    }
    // A shard of `size` ids that count up from `first`.
    std::string shard(const std::string& name, int64_t size, uint16_t first = 0) const {
        std::vector<uint16_t> ids;
        for (int64_t i = 0; i < size; i++) ids.push_back(static_cast<uint16_t>(first + i));
        write_shard(path(name), ids);
        return path(name);
    }
    std::string header(std::vector<int32_t> words) const {
        words.resize(256);
        return {reinterpret_cast<const char*>(words.data()), 1024};
    }
    Dataset dataset(const std::vector<int64_t>& sizes) const {
        Dataset out;
        for (size_t i = 0; i < sizes.size(); i++)
            out.shards.emplace_back(
                shard("part" + std::to_string(i) + ".bin", sizes[i], static_cast<uint16_t>(1000 * i)));
        return out;
    }
    // Each inner vector is the ids of a shard.
    Dataset dataset_of(const std::vector<std::vector<uint16_t>>& shards) const {
        Dataset out{.shards = {}, .source = "the data"};
        for (const auto& ids : shards) {
            const std::string name = path("ids" + std::to_string(out.shards.size()) + ".bin");
            write_shard(name, ids);
            out.shards.emplace_back(name);
        }
        return out;
    }
    const std::string& directory = root;
};

inline std::vector<int32_t> ids_of(const Shard& shard) {
    std::vector<int32_t> ids;
    shard.copy(0, shard.size(), std::back_inserter(ids));
    return ids;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

#define EXPECT_CONTAINS(text, part) EXPECT_TRUE(contains(text, part)) << text

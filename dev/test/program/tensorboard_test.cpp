// The event file of --tensorboard, decoded by a small reader of its own: framing, checksums, messages and values.
#include "program/tensorboard.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>

#include "dev/test/test_directory.h"
#include "io/file/checksum.h"

namespace {

// CRC-32C by its definition: the remainder of the message, whose bits are reversed, in a division by the polynomial.
uint32_t remainder_castagnoli(const std::string& bytes) {
    std::vector<int> bits;
    for (const char byte : bytes)
        for (int i = 0; i < 8; i++) bits.push_back(byte >> i & 1);
    bits.resize(bits.size() + 32);
    for (size_t i = 0; i < 32; i++) bits[i] ^= 1;
    constexpr uint32_t polynomial = 0x1edc6f41;
    for (size_t i = 0; i + 32 < bits.size(); i++)
        if (bits[i])
            for (size_t j = 0; j < 33; j++) bits[i + j] ^= j == 0 || (polynomial >> (32 - j) & 1);
    uint32_t crc = 0;
    for (size_t i = 0; i < 32; i++) crc |= static_cast<uint32_t>(bits[bits.size() - 32 + i]) << i;
    return ~crc;
}

template <class T>
T number_at(const std::string& bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes.substr(at, sizeof value).data(), sizeof value);
    return value;
}

// The records of a file, whose checksums must be right.
std::vector<std::string> records(const std::string& file) {
    std::vector<std::string> all;
    const auto expect_checksum = [](const std::string& bytes, uint32_t masked) {
        const uint32_t rotated = masked - 0xa282ead8u, crc = rotated >> 17 | rotated << 15;
        EXPECT_EQ(crc, remainder_castagnoli(bytes));
    };
    for (size_t at = 0; at < file.size();) {
        const auto length = number_at<uint64_t>(file, at);
        expect_checksum(file.substr(at, 8), number_at<uint32_t>(file, at + 8));
        all.push_back(file.substr(at + 12, length));
        EXPECT_EQ(all.back().size(), length);
        expect_checksum(all.back(), number_at<uint32_t>(file, at + 12 + length));
        at += 16 + length;
    }
    return all;
}

// The fields of a message by their numbers: the bytes of each value, or of an integer its decimal digits.
std::multimap<uint64_t, std::string> fields(const std::string& message) {
    std::multimap<uint64_t, std::string> all;
    size_t at = 0;
    const auto varint = [&] {
        uint64_t value = 0;
        for (int shift = 0;; shift += 7) {
            const auto byte = static_cast<uint8_t>(message.at(at++));
            value |= static_cast<uint64_t>(byte & 0x7f) << shift;
            if (byte < 0x80) return value;
        }
    };
    while (at < message.size()) {
        const uint64_t key = varint();
        if ((key & 7) == 0) {
            all.emplace(key >> 3, std::to_string(varint()));
            continue;
        }
        const uint64_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
        all.emplace(key >> 3, message.substr(at, size));
        at += size;
    }
    EXPECT_EQ(at, message.size());
    return all;
}
std::string field(const std::string& message, uint64_t number) {
    const auto all = fields(message);
    EXPECT_EQ(all.count(number), 1u) << "field " << number;
    return all.count(number) ? all.find(number)->second : "";
}

// The scalars of an event by their tags.
std::map<std::string, float> scalars(const std::string& event) {
    std::map<std::string, float> values;
    const std::string summary = field(event, 5);
    for (const auto& [number, value] : fields(summary)) {
        EXPECT_EQ(number, 1u);
        values[field(value, 1)] = number_at<float>(field(value, 2), 0);
    }
    return values;
}

class TensorBoard : public TestDirectory {
protected:
    // The events of the newest file, as TensorBoard sorts them.
    std::vector<std::string> events() const { return records(read_bytes(at(listing(root).back()))); }
};

}  // namespace

TEST(Castagnoli, ChecksumsAreThoseOfRfc3720) {
    std::string ascending(32, 0), descending(32, 0);
    for (char i = 0; i < 32; i++) ascending[i] = i, descending[31 - i] = i;
    const std::pair<std::string, uint32_t> known[] = {{std::string(32, '\0'), 0x8a9136aa},
                                                      {std::string(32, '\xff'), 0x62a8ab43},
                                                      {ascending, 0x46dd794e},
                                                      {descending, 0x113fdb5c},
                                                      {"123456789", 0xe3069283},
                                                      {"", 0}};
    for (const auto& [bytes, crc] : known) {
        EXPECT_EQ(checksum_castagnoli(bytes), crc);
        EXPECT_EQ(remainder_castagnoli(bytes), crc) << "the test's own";
    }
}

TEST_F(TensorBoard, AFileBeginsWithItsVersionAndTheStartOfASession) {
    const EventFile file(root, 301);
    EXPECT_TRUE(listing(root)[0].starts_with("events.out.tfevents.")) << "TensorBoard looks for this name";
    const auto all = events();
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(field(all[0], 3), "brain.Event:2");
    EXPECT_EQ(field(all[1], 2), "301") << "TensorBoard drops what it has from this step on";
    EXPECT_EQ(field(field(all[1], 7), 1), "1") << "START";
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    EXPECT_NEAR(number_at<double>(field(all[1], 1), 0), now, 100);
}

TEST_F(TensorBoard, ScalarsAreTheLogsValues) {
    EventFile file(root, 0);
    const int64_t step = int64_t{1} << 40;
    file.write({.step = step,
                .split = "train",
                .loss = 2.5,
                .lr = 3e-4,
                .grad_norm = NAN,
                .tokens_per_second = 1e9,
                .seconds = 7});
    file.write(
        {.step = 128, .split = "val", .loss = 1.25, .seconds = 8, .nats_per_byte = 0.5, .choices_accuracy = 0.75});
    file.write({.step = 0, .split = "val", .loss = 5});
    EXPECT_EQ(file.trouble(), "");
    const auto all = events();
    ASSERT_EQ(all.size(), 5u);
    EXPECT_EQ(field(all[2], 2), std::to_string(step));
    auto train = scalars(all[2]);
    EXPECT_TRUE(std::isnan(train["train/grad_norm"])) << "a diverged run must stay visible";
    train.erase("train/grad_norm");
    EXPECT_EQ(train, (std::map<std::string, float>{
                         {"train/loss", 2.5f}, {"train/lr", 3e-4f}, {"train/tokens_per_second", 1e9f}}));
    EXPECT_EQ(field(all[3], 2), "128") << "the first number of two bytes";
    EXPECT_EQ(scalars(all[3]), (std::map<std::string, float>{
                                   {"val/loss", 1.25f}, {"val/nats_per_byte", 0.5f}, {"val/choices_accuracy", 0.75f}}));
    EXPECT_EQ(scalars(all[4]), (std::map<std::string, float>{{"val/loss", 5.f}}));
}

TEST_F(TensorBoard, ASampleIsATextWhoseLinesAreShownAsTheyAre) {
    EventFile file(root, 0);
    file.write(Sample{200, "# one\n\n<b>\xff" + std::string(300, 'x')});  // longer than one byte of a length says
    const std::string value = field(field(events().back(), 5), 1), tensor = field(value, 8);
    EXPECT_EQ(field(value, 1), "sample");
    EXPECT_EQ(field(field(field(value, 9), 1), 1), "text") << "the plug-in that shows it";
    EXPECT_EQ(field(tensor, 1), "7") << "a string";
    EXPECT_EQ(field(tensor, 2), "") << "a scalar";
    EXPECT_EQ(field(tensor, 8), "    # one\n    \n    <b>\ufffd" + std::string(300, 'x')) << "Markdown's indented code";
}

// TensorBoard reads the files in the order of their names.
TEST_F(TensorBoard, FilesOfOneSecondAndOfASetBackClockAreInOrder) {
    for (const int64_t start : {1, 2, 3}) EventFile(root, start);
    EXPECT_EQ(listing(root).size(), 3u);
    EXPECT_EQ(field(events()[1], 2), "3");
    write_bytes(at("events.out.tfevents.4000000000.elsewhere"), "");
    EventFile(root, 4);
    EXPECT_EQ(listing(root).size(), 5u);
    EXPECT_EQ(field(events()[1], 2), "4");
}

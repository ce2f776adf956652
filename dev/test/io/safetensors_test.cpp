// The safetensors format: files are read back as written, and no header is trusted.
#include "io/model/safetensors.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "dev/test/io/model_files.h"
#include "device/float_formats.h"

namespace {

class Safetensors : public ModelFiles {
protected:
    // Writes a file with this header and `data_bytes` bytes of data, each of which is its own index.
    std::string make(const std::string& header, size_t data_bytes) {
        const uint64_t length = header.size();
        std::string bytes(reinterpret_cast<const char*>(&length), 8);
        bytes += header;
        for (size_t i = 0; i < data_bytes; i++) bytes += static_cast<char>(i);
        write_bytes(path, bytes);
        return path;
    }
    void expect_bad(const std::string& header, size_t data_bytes, std::vector<std::string> parts) {
        SCOPED_TRACE(header);
        make(header, data_bytes);
        parts.push_back(path);
        expect_refused([&] { SafetensorsFile file(path); }, parts);
    }
    const std::string path = at("x.safetensors");
};

TEST_F(Safetensors, RoundTripOfDTypesAndShapes) {
    const std::vector<float> f = {1, -2, 0.5f, INFINITY, NAN, 1e-40f};
    const std::vector<int64_t> i = {INT64_MIN, 7};
    const std::vector<uint16_t> u = {65535};
    write_safetensors(path, {{"größe", DType::F32, {2, 3}, f.data()},
                             {"scalar", DType::U16, {}, u.data()},
                             {"nothing", DType::F32, {0, 5}, nullptr},
                             {"i", DType::I64, {2}, i.data()}});
    const SafetensorsFile file(path);
    ASSERT_EQ(file.entries().size(), 4);
    const auto* entry = file.find("größe");
    ASSERT_TRUE(entry);
    EXPECT_EQ(entry->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(entry->dtype, DType::F32);
    std::vector<float> back(6);
    file.read(*entry, back.data());
    EXPECT_EQ(std::memcmp(back.data(), f.data(), 24), 0);
    std::vector<double> wide(6);
    file.read(*entry, wide.data());
    EXPECT_EQ(wide[2], 0.5);
    EXPECT_EQ(file.find("nothing")->elements(), 0);
    EXPECT_EQ(file.find("scalar")->elements(), 1);
    EXPECT_EQ(std::memcmp(file.data(*file.find("i")), i.data(), 16), 0);
    EXPECT_EQ(file.find("absent"), nullptr);
    expect_refused([&] { file.read(*file.find("i"), back.data()); }, {path, "\"i\"", "I64", "F32"});
    EXPECT_EQ(listing(root), std::vector<std::string>{"x.safetensors"});
}

// The data must start on a multiple of 8 bytes, for readers that map the file.
TEST_F(Safetensors, WritesAlignedDataAndMetadata) {
    const float one = 1;
    for (const std::string name : {"a", "ab", "abc", "abcd"}) {
        write_safetensors(path, {{name, DType::F32, {1}, &one}});
        const std::string bytes = read_bytes(path);
        uint64_t length;
        std::memcpy(&length, bytes.data(), 8);
        EXPECT_EQ(length % 8, 0);
        EXPECT_EQ(bytes.size(), 8 + length + 4);
        EXPECT_NE(bytes.find(R"("__metadata__":{"format":"pt"})"), std::string::npos);
    }
}

TEST_F(Safetensors, TransposesBothWays) {
    for (const auto& [M, N] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 40}, {40, 1}, {17, 33}, {1500, 900}}) {
        std::vector<float> ours(M * N), stored(M * N), back(M * N);
        for (size_t k = 0; k < ours.size(); k++) ours[k] = static_cast<float>(k);
        write_safetensors(path, {{"w", DType::F32, {M, N}, ours.data(), true}});  // ours is (N,M)
        const SafetensorsFile file(path);
        file.read(*file.find("w"), stored.data());
        for (int64_t m = 0; m < M; m++)
            for (int64_t n = 0; n < N; n++) ASSERT_EQ(stored[m * N + n], ours[n * M + m]) << m << ' ' << n;
        file.read_transposed(*file.find("w"), back.data());
        EXPECT_EQ(back, ours);
    }
}

// Every half-precision value, against its definition.
TEST(FloatFormats, F16IsExact) {
    for (uint32_t h = 0; h < 65536; h++) {
        const int exponent = (h >> 10) & 31, fraction = h & 1023;
        double expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
        if (h & 0x8000) expected = -expected;
        const float found = float_from_f16(static_cast<uint16_t>(h));
        if (exponent == 31 && fraction)
            ASSERT_TRUE(std::isnan(found)) << h;
        else if (exponent == 31)
            ASSERT_EQ(found, (h & 0x8000) ? -INFINITY : INFINITY) << h;
        else
            ASSERT_EQ(std::bit_cast<uint32_t>(found), std::bit_cast<uint32_t>(static_cast<float>(expected))) << h;
    }
}

TEST(FloatFormats, Bf16RoundsToNearestTiesToEven) {
    for (uint32_t h = 0; h < 65536; h++) {  // each bf16 survives
        const auto value = static_cast<uint16_t>(h);
        if (std::isnan(float_from_bf16(value)))
            EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(float_from_bf16(value)))));
        else
            ASSERT_EQ(bf16_from_float(float_from_bf16(value)), value);
    }
    const auto rounded = [](uint32_t bits) { return bf16_from_float(std::bit_cast<float>(bits)); };
    EXPECT_EQ(rounded(0x3F808000), 0x3F80);  // a tie, to the even one below
    EXPECT_EQ(rounded(0x3F818000), 0x3F82);  // a tie, to the even one above
    EXPECT_EQ(rounded(0x3F807FFF), 0x3F80);
    EXPECT_EQ(rounded(0x3F808001), 0x3F81);
    EXPECT_EQ(rounded(0x7F7FFFFF), 0x7F80);  // the largest float rounds to infinity
    EXPECT_TRUE(std::isnan(float_from_bf16(rounded(0x7FFFFFFF))));
    EXPECT_TRUE(std::isnan(float_from_bf16(rounded(0x7F800001))));
}

TEST_F(Safetensors, ReadsHalfPrecisionAndUnalignedData) {
    make(
        R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"h":{"dtype":"F16","shape":[1,2],"data_offsets":[4,8]} })",
        8);
    const SafetensorsFile file(path);
    float values[2];
    file.read(*file.find("b"), values);
    EXPECT_EQ(values[1], float_from_bf16(0x0302));
    file.read(*file.find("h"), values);
    EXPECT_EQ(values[0], float_from_f16(0x0504));
}

TEST_F(Safetensors, RefusesLyingHeaders) {
    const auto tensor = [](const std::string& rest) { return R"({"w":{"dtype":"F32",)" + rest + "}}"; };
    expect_bad(tensor(R"("shape":[2],"data_offsets":[0,12])"), 12, {"\"w\"", "[2] of F32", "12 bytes"});
    expect_bad(tensor(R"("shape":[3],"data_offsets":[0,16])"), 12, {"\"w\"", "[0,16]", "12 bytes"});
    expect_bad(tensor(R"("shape":[3],"data_offsets":[12,0])"), 12, {"\"w\"", "[12,0]"});
    expect_bad(tensor(R"("shape":[3],"data_offsets":[-12,0])"), 12, {"\"w\"", "[-12,0]"});
    expect_bad(tensor(R"("shape":[3],"data_offsets":[0])"), 12, {"\"w\"", "[0]"});
    expect_bad(tensor(R"("shape":[3],"data_offsets":[0,99999999999999999999])"), 12, {"\"w\"", "data_offsets"});
    expect_bad(tensor(R"("shape":[3])"), 12, {"\"w\"", "data_offsets null"});
    expect_bad(tensor(R"("shape":[-3],"data_offsets":[0,12])"), 12, {"\"w\"", "[-3]"});
    expect_bad(tensor(R"("shape":[1.5],"data_offsets":[0,12])"), 12, {"\"w\"", "[1.5]"});
    expect_bad(tensor(R"("shape":["3"],"data_offsets":[0,12])"), 12, {"\"w\"", "[\"3\"]"});
    expect_bad(tensor(R"("shape":[NaN],"data_offsets":[0,12])"), 12, {"JSON"});
    expect_bad(tensor(R"("shape":3,"data_offsets":[0,12])"), 12, {"\"w\"", "shape 3"});
    // 2^62 · 4 and (2^32)² · 4 are 0 in 64 bits: an overflow must not make the shape fit.
    expect_bad(tensor(R"("shape":[4611686018427387904],"data_offsets":[0,0])"), 0, {"\"w\"", "4611686018427387904"});
    expect_bad(tensor(R"("shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0, {"\"w\"", "4294967296"});
    expect_bad(R"({"w":{"dtype":7,"shape":[3],"data_offsets":[0,12]}})", 12, {"\"w\"", "dtype 7"});
    expect_bad(R"({"w":[1,2]})", 12, {"\"w\""});
    expect_bad(R"([1,2])", 12, {"JSON", "an object"});
    expect_bad(R"({"w":)", 12, {"invalid JSON"});
    expect_bad("", 12, {"JSON"});
    expect_bad(std::string("\xff\xfe{}"), 12, {"JSON"});
}

TEST_F(Safetensors, RefusesOverlapsGapsAndDuplicates) {
    const auto two = [](const char* second, const char* offsets) {
        return std::string(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},")") + second +
               R"(":{"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}}";
    };
    expect_bad(two("b", "[4,12]"), 12, {"\"b\"", "begin at 4", "expected 8"});
    expect_bad(two("b", "[0,8]"), 8, {"begin at 0", "expected 8"});
    expect_bad(two("b", "[12,20]"), 20, {"\"b\"", "begin at 12", "expected 8"});
    expect_bad(two("b", "[8,16]"), 20, {"size of the data", "20 bytes", "16 bytes"});
    expect_bad(two("a", "[8,16]"), 16, {"\"a\"", "twice"});
    make(two("b", "[8,16]"), 16);
    EXPECT_NO_THROW(SafetensorsFile{path});
}

TEST_F(Safetensors, RefusesHeaderLengthsBeyondTheFile) {
    for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{100'000'001}, uint64_t{17}}) {
        std::string bytes(reinterpret_cast<const char*>(&length), 8);
        write_bytes(path, bytes + std::string(16, ' '));
        expect_refused([&] { SafetensorsFile file(path); },
                       {path, "header length", std::to_string(length), "at most 16"});
    }
    write_bytes(path, "");
    expect_refused([&] { SafetensorsFile file(path); }, {path, "0 bytes"});
    expect_refused([&] { SafetensorsFile file(at("absent")); }, {at("absent"), "No such file"});
    expect_refused([&] { SafetensorsFile file(root); }, {root, "a directory"});
}

TEST_F(Safetensors, RefusesTruncationAnywhere) {
    const std::vector<float> values(64, 1);
    write_safetensors(path, {{"a", DType::F32, {32}, values.data()}, {"b", DType::F32, {8, 8}, values.data()}});
    const std::string whole = read_bytes(path);
    for (size_t k = 0; k < 16; k++) {
        write_bytes(path, whole.substr(0, whole.size() * k / 16));
        EXPECT_THROW(SafetensorsFile{path}, InputError) << k;
    }
    write_bytes(path, whole + "x");
    EXPECT_THROW(SafetensorsFile{path}, InputError);
}

// Names come from the file: they must not break the message's one line, nor flood it.
TEST_F(Safetensors, KeepsMessagesToOneShortLine) {
    const std::string name = "evil\\n\\u001b[2J" + std::string(10000, 'x');
    make("{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}})", 12);
    try {
        SafetensorsFile file(path);
        FAIL();
    } catch (const InputError& e) {
        EXPECT_EQ(std::string(e.what()).find_first_of("\n\x1b"), std::string::npos);
        EXPECT_LT(std::string(e.what()).size(), 600);
    }
}

TEST_F(Safetensors, FullDiskLeavesTheOldFile) {
    const std::vector<float> values(100000, 1);
    write_safetensors(path, {{"a", DType::F32, {3}, values.data()}});
    const std::string before = read_bytes(path);
    {
        const FullDisk full(65536);
        expect_refused(
            [&] {
                write_safetensors(path, {{"a", DType::F32, {100000}, values.data()}});
            },
            {path, "write failed"});
    }
    EXPECT_EQ(read_bytes(path), before);
    EXPECT_EQ(listing(root), std::vector<std::string>{"x.safetensors"});
    expect_refused([&] { write_safetensors(at("no/such/x"), {}); }, {at("no/such/x"), "No such file"});
}

}  // namespace

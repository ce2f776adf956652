#include "io/text/file_kind.h"

#include <cstdint>
#include <cstring>

#include "io/model/llmc_files.h"

namespace {

using namespace std::string_view_literals;

// How files of a kind begin.
struct Signature {
    std::string_view begin;
    const char *name, *remedy;
};
// The order matters: a longer prefix stands before the shorter one that it contains.
constexpr Signature signatures[] = {
    {"\xff\xfe\0\0"sv, "UTF-32 text", "iconv -f UTF-32 -t UTF-8 IN > OUT"},
    {"\0\0\xfe\xff"sv, "UTF-32 text", "iconv -f UTF-32 -t UTF-8 IN > OUT"},
    {"\xff\xfe"sv, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 IN > OUT"},
    {"\xfe\xff"sv, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 IN > OUT"},
    {"\x1f\x8b\x08"sv, "gzip data", "gzip -dc IN > OUT"},
    {"\x28\xb5\x2f\xfd"sv, "zstd data", "zstd -dc IN > OUT"},
    {"\xfd\x37zXZ\0"sv, "xz data", "xz -dc IN > OUT"},
    {"BZh91AY&SY"sv, "bzip2 data", "bzip2 -dc IN > OUT"},
    {"\x04\x22\x4d\x18"sv, "lz4 data", "lz4 -dc IN > OUT"},
    {"7z\xbc\xaf\x27\x1c"sv, "a 7-Zip archive", "unpack it with 7z"},
    {"Rar!\x1a\x07"sv, "a RAR archive", "unpack it with unrar"},
    {"%PDF-"sv, "a PDF", "pdftotext IN OUT"},
    {"\x93NUMPY"sv, "a NumPy array", "for token ids: numpy.load(IN).astype(numpy.uint16).tofile('OUT.bin')"},
    {"PAR1"sv, "a Parquet file", "export its text column as JSON lines (README.md has a command)"},
    {"ARROW1"sv, "an Arrow file", "export its text column as JSON lines (README.md has a command)"},
    {"GGUF"sv, "a GGUF model", "pass a text file"},
    {"SQLite format 3\0"sv, "an SQLite database", "export its text to a text file"},
    {"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv, "a Microsoft Office document", "save it as plain text, UTF-8"},
};

}  // namespace

FileKind kind_of(std::string_view bytes) {
    for (const Signature& signature : signatures)
        if (bytes.starts_with(signature.begin)) return {signature.name, signature.remedy};
    if (bytes.size() > 262 && bytes.substr(257, 5) == "ustar") return {"a tar archive", "tar -xf IN"};
    int32_t magic = 0;
    if (bytes.size() >= sizeof magic) std::memcpy(&magic, bytes.data(), sizeof magic);
    const std::string kind = llmc_kind(magic);
    if (kind == "an llm.c token shard") return {kind, "give it a name that ends in .bin"};
    if (!kind.empty()) return {kind, "check which file this is"};
    return {};
}

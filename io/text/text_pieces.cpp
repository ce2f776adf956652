#include "io/text/text_pieces.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "io/file/error.h"
#include "io/text/file_kind.h"

namespace {

constexpr size_t mapped_piece = 16 << 20, unpacked_piece = 4 << 20;

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b\x08"); }
bool is_zstd(std::string_view bytes) { return bytes.starts_with("\x28\xb5\x2f\xfd"); }

struct Damage {
    std::string what;
};

}  // namespace

// Decompresses and joins all members (gzip) or frames (zstd) of a file, as gzip -d and zstd -d do.
class TextPieces::Unpacker {
public:
    explicit Unpacker(const char* kind) : name(kind) {}
    virtual ~Unpacker() = default;
    Unpacker(const Unpacker&) = delete;
    // Takes bytes from the beginning of `in` until `out` is full, and returns how many it holds then: less than `size`
    // at the end only. Throws Damage.
    virtual size_t read(std::string_view& in, char* out, size_t size) = 0;
    const char* const name;
};

namespace {

class Gzip : public TextPieces::Unpacker {
public:
    Gzip() : Unpacker("gzip") {
        if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();  // 16: gzip's header and checksum
    }
    ~Gzip() override { inflateEnd(&stream_); }

    size_t read(std::string_view& in, char* out, size_t size) override {
        stream_.next_out = reinterpret_cast<Bytef*>(out);
        stream_.avail_out = static_cast<uInt>(size);
        while (!ended_ && stream_.avail_out > 0) {
            const auto offered = static_cast<uInt>(std::min<size_t>(in.size(), 1 << 30));  // zlib counts in 32 bits
            stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
            stream_.avail_in = offered;
            const int status = inflate(&stream_, Z_NO_FLUSH);
            in.remove_prefix(offered - stream_.avail_in);
            if (status == Z_STREAM_END) {
                ended_ = in.find_first_not_of('\0') == in.npos;  // zeros may follow the last member
                if (ended_) in = {};
                if (!ended_ && !is_gzip(in)) throw Damage{"other bytes follow it"};
                inflateReset(&stream_);
            } else if (status == Z_BUF_ERROR || (status == Z_OK && in.empty() && stream_.avail_out > 0)) {
                throw Damage{"it is cut short"};
            } else if (status != Z_OK) {
                throw Damage{stream_.msg ? stream_.msg : "invalid bytes"};
            }
        }
        return size - stream_.avail_out;
    }

private:
    z_stream stream_{};
    bool ended_ = false;
};

class Zstd : public TextPieces::Unpacker {
public:
    Zstd() : Unpacker("zstd"), stream_(ZSTD_createDCtx()) {
        if (!stream_) throw std::bad_alloc();
        ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 31);  // also files of zstd --long
    }
    ~Zstd() override { ZSTD_freeDCtx(stream_); }

    size_t read(std::string_view& in, char* out, size_t size) override {
        ZSTD_outBuffer to{out, size, 0};
        while (to.pos < size && !(in.empty() && frame_ended_)) {
            ZSTD_inBuffer from{in.data(), in.size(), 0};
            const size_t left = ZSTD_decompressStream(stream_, &to, &from);
            if (ZSTD_isError(left)) throw Damage{ZSTD_getErrorName(left)};
            in.remove_prefix(from.pos);
            frame_ended_ = left == 0;
            if (in.empty() && !frame_ended_ && to.pos < size) throw Damage{"it is cut short"};
        }
        return to.pos;
    }

private:
    ZSTD_DCtx* stream_;
    bool frame_ended_ = false;
};

}  // namespace

TextPieces::TextPieces(const MappedFile& file)
    : file_(file), rest_(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size())) {
    if (is_gzip(rest_)) unpacker_ = std::make_unique<Gzip>();
    if (is_zstd(rest_)) unpacker_ = std::make_unique<Zstd>();
    first_ = read();
    if (const FileKind kind = kind_of(first_); !kind.name.empty())
        throw InputError(file.path() + ": this is " + kind.name +
                         (packed() ? std::string(" in ") + unpacker_->name + " data" : "") + ", not UTF-8 text; " +
                         kind.remedy);
}

TextPieces::~TextPieces() = default;

std::string_view TextPieces::next() { return first_.empty() ? read() : std::exchange(first_, {}); }

std::string_view TextPieces::read() {
    if (!packed()) {
        const int64_t done = position(), before = std::min(done, static_cast<int64_t>(mapped_piece));
        file_.forget(file_.data() + done - before, before);
        const std::string_view piece = rest_.substr(0, mapped_piece);
        rest_.remove_prefix(piece.size());
        return piece;
    }
    buffer_.resize(unpacked_piece);
    try {
        const std::string_view piece(buffer_.data(), unpacker_->read(rest_, buffer_.data(), buffer_.size()));
        bytes_ += std::ssize(piece);
        lines_ += std::count(piece.begin(), piece.end(), '\n');
        return piece;
    } catch (const Damage& damage) {
        throw InputError(file_.path() + ": damaged " + unpacker_->name + " data: " + damage.what + " (byte " +
                         std::to_string(position()) + " of the file; of the text, after byte " +
                         std::to_string(bytes_) + ", line " + std::to_string(lines_ + 1) +
                         "); copy or compress the file again");
    }
}

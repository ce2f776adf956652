#include "dev/emulator/ptx_on_cpu.h"

#include <vector>

#include "dev/emulator/access.h"
#include "dev/emulator/block.h"
#include "dev/emulator/memory.h"

namespace emulator {

static float bf16_half(unsigned pair, int half) { return std::bit_cast<float>(half ? pair & 0xffff0000 : pair << 16); }

void mma(float* d, const unsigned* a, const unsigned* b, Site site) {
    struct Fragments {
        const unsigned *a, *b;
        float* d;
    } mine{a, b, d};
    collective(
        "mma.sync", 0xffffffff, &mine,
        [](void* const* lanes, unsigned) {
            float A[16][16], B[16][8];
            const auto of = [&](int lane) -> Fragments& { return *static_cast<Fragments*>(lanes[lane]); };
            for (int lane = 0; lane < 32; ++lane) {
                const int g = lane / 4, t = lane % 4;
                for (int i = 0; i < 4; ++i)
                    for (int half = 0; half < 2; ++half)
                        A[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + half] = bf16_half(of(lane).a[i], half);
                for (int i = 0; i < 2; ++i)
                    for (int half = 0; half < 2; ++half) B[2 * t + 8 * i + half][g] = bf16_half(of(lane).b[i], half);
            }
            for (int lane = 0; lane < 32; ++lane)
                for (int i = 0; i < 4; ++i) {
                    const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
                    float sum = of(lane).d[i];
                    for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
                    of(lane).d[i] = sum;
                }
        },
        site);
}

static bool in_shared_memory(const char* p) {
    if (in_dynamic_shared(p)) return true;
    const size_t offset = static_cast<size_t>(p - thread_locals());
    return offset < thread_locals_size() && shared_variable_near(offset);
}

struct MatrixRow {
    uint16_t values[8];  // of the row that the lane names
    unsigned* r;         // where the lane wants its part of the matrices
};
template <bool transposed>
static void distribute(void* const* lanes, unsigned) {
    const auto of = [&](int lane) -> MatrixRow& { return *static_cast<MatrixRow*>(lanes[lane]); };
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i) {
            const auto at = [&](int y, int x) {
                return unsigned{of(8 * i + (transposed ? x : y)).values[transposed ? y : x]};
            };
            of(lane).r[i] = at(g, 2 * t) | at(g, 2 * t + 1) << 16;
        }
    }
}

void ldmatrix(unsigned* r, const void* row, bool transposed, Site site) {
    const char* const p = static_cast<const char*>(row);
    if (reinterpret_cast<uintptr_t>(p) % 16)
        running->fail(*running->current, &site, nullptr, "ldmatrix from a misaligned address: no multiple of 16");
    if (!in_shared_memory(p))
        running->fail(*running->current, &site, nullptr, "ldmatrix from %p, which is not in shared memory", row);
    access(p, 16, Kind::read, __builtin_return_address(0));
    MatrixRow mine{{}, r};
    std::memcpy(mine.values, p, 16);
    if (transposed)
        collective("ldmatrix.trans", 0xffffffff, &mine, distribute<true>, site);
    else
        collective("ldmatrix", 0xffffffff, &mine, distribute<false>, site);
}

// --- copies: the unfinished ones of each thread, and its number of groups
struct Copy {
    char* to;
    char bytes[16];
    size_t group;
};
struct Copies {
    std::vector<Copy> under_way;
    size_t groups = 0;
};
static thread_local std::vector<Copies> copies;
static thread_local bool copied = false;  // since copies_begin

static Copies& mine() { return copies[static_cast<size_t>(running->current->number)]; }

void copies_begin() {
    copies.resize(1024);
    if (copied) std::fill(copies.begin(), copies.end(), Copies{});
    copied = false;
}
void copies_end() {
    if (copied && !mine().under_way.empty())
        running->fail(*running->current, nullptr, nullptr, "leaves the kernel with cp.async copies under way");
}

void copy_async(void* shared, const void* global, size_t bytes, Site site) {
    char* const to = static_cast<char*>(shared);
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(global)) % 16)
        running->fail(*running->current, &site, nullptr, "cp.async with a misaligned address: no multiple of 16");
    if (!in_shared_memory(to))
        running->fail(*running->current, &site, nullptr, "cp.async to %p, which is not in shared memory", shared);
    const void* const pc = __builtin_return_address(0);
    Copy copy{to, {}, mine().groups};
    if (bytes) {
        access(global, bytes, Kind::read, pc);
        std::memcpy(copy.bytes, global, bytes);
    }
    access(to, 16, Kind::write, pc);
    const Internal scope;
    poison(to, 16);
    becomes_unwritten(to, 16);
    mine().under_way.push_back(copy);
    copied = true;
}

void commit_copies() { ++mine().groups; }

void wait_for_copies(size_t but) {
    const void* const pc = __builtin_return_address(0);
    std::vector<Copy>& all = mine().under_way;
    size_t arrived = 0;
    for (; arrived < all.size() && all[arrived].group + but < mine().groups; ++arrived) {
        access(all[arrived].to, 16, Kind::write, pc);
        std::memcpy(all[arrived].to, all[arrived].bytes, 16);
    }
    const Internal scope;
    all.erase(all.begin(), all.begin() + static_cast<ptrdiff_t>(arrived));
}

}  // namespace emulator

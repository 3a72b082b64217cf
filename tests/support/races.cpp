// Races of the kernels under the emulator: two threads at one place in memory, one of them writing, and no barrier between. And
// what lies beyond the memory that a kernel was given.
//
// A kernel is compiled with -fsanitize=thread, which calls the functions below at every access, and linked without the sanitizer
// itself, which knows system threads and no fibers. Since whole groups wait for each other, what is ordered is known by counting:
// of two threads of a warp by the barriers of warp, block and cluster, of a block by the last two, of a cluster by the last.
// Blocks that are not of a cluster are never ordered. A shuffle or a vote orders nothing, as on a GPU.
#include "emulator.h"
#include "races.h"

#include <cstdio>
#include <dlfcn.h>
#include <unordered_map>
#include <utility>
#include <vector>

struct Access {
    Moment at;
    bool atomic;
    void* code;
};
struct Place {  // of four bytes
    bool written = false;
    Access write;
    std::vector<Access> reads;  // since then: the last two of each warp, by different threads
};
constexpr unsigned long WORD = 4;
constexpr unsigned MOST = 20;  // that are told

static unsigned blocks_of_one_cluster = 1;
static std::unordered_map<unsigned long, Place> places;
static std::vector<std::pair<unsigned long, unsigned long>> given;  // addresses and bytes
static std::vector<char> report;
static unsigned found = 0;

static bool same_warp(const Moment& a, const Moment& b) { return a.block == b.block && a.thread / 32 == b.thread / 32; }

static bool ordered(const Moment& a, const Moment& b) {
    if (a.block == b.block && a.thread == b.thread) return true;
    if (a.block / blocks_of_one_cluster != b.block / blocks_of_one_cluster) return false;
    if (a.of_cluster != b.of_cluster) return true;
    if (a.block != b.block) return false;
    return a.of_block != b.of_block || (a.thread / 32 == b.thread / 32 && a.of_warp != b.of_warp);
}
static unsigned long offset(void* code) {
    Dl_info info;
    return dladdr(code, &info) ? (unsigned long)code - (unsigned long)info.dli_fbase : 0;
}
static void tell(const char* line, int size) {
    if (++found <= MOST) report.insert(report.end(), line, line + size);
}
static void check_inside(const void* address, unsigned long bytes, const Access& own, bool writes) {
    const unsigned long first = (unsigned long)address;
    if (is_shared(address) && is_shared((const char*)address + bytes - 1)) return;
    for (const auto& [start, size] : given)
        if (first >= start && first + bytes <= start + size) return;
    Dl_info info, ours;
    if (!writes && dladdr(address, &info) && dladdr(own.code, &ours) && info.dli_fbase == ours.dli_fbase) return;  // a constant
    char line[256];
    tell(line, std::snprintf(line, sizeof line, "block %u thread %u %s at 0x%lx beyond the memory it was given\n", own.at.block, own.at.thread,
                             writes ? "wrote" : "read", offset(own.code)));
}
static void check(const Access& a, bool a_writes, const Access& b, bool b_writes) {
    if ((a.atomic && b.atomic) || ordered(a.at, b.at)) return;
    char line[256];
    tell(line, std::snprintf(line, sizeof line, "block %u thread %u %s at 0x%lx, block %u thread %u %s at 0x%lx\n", a.at.block, a.at.thread,
                                   a_writes ? "wrote" : "read", offset(a.code), b.at.block, b.at.thread, b_writes ? "wrote" : "read", offset(b.code)));
}
static void look(void* address, unsigned long bytes, bool writes, void* code) {
    if (is_private(address)) return;
    const Access own = {now(), atomically, code};
    check_inside(address, bytes, own, writes);
    const unsigned long first = (unsigned long)address / WORD, last = ((unsigned long)address + bytes - 1) / WORD;
    for (unsigned long word = first; word <= last; ++word) {
        Place& place = places[word];
        if (place.written) check(place.write, true, own, writes);
        if (writes) {
            for (const Access& read : place.reads) check(read, false, own, true);
            place.reads.clear();
            place.written = true;
            place.write = own;
            continue;
        }
        // Of a warp's reads only the last moment counts, and there two threads: one of them is not the writer.
        unsigned of_warp = 0;
        bool known = false;
        for (unsigned i = 0; i < place.reads.size();) {
            Access& read = place.reads[i];
            const bool mine = same_warp(read.at, own.at), past = mine && ordered(read.at, own.at) && read.at.thread != own.at.thread;
            if (past) {
                read = place.reads.back();
                place.reads.pop_back();
                continue;
            }
            if (mine && read.at.thread == own.at.thread) {
                read = own;
                known = true;
            }
            of_warp += mine;
            ++i;
        }
        if (!known && of_warp < 2) place.reads.push_back(own);
    }
}

static Watcher own = {
    [](unsigned cluster) {  // what was before is behind all threads
        places.clear();
        blocks_of_one_cluster = cluster;
    },
    [](const void* first, unsigned long bytes) {
        for (unsigned long past = 0; past < bytes; past += WORD) places.erase(((unsigned long)first + past) / WORD);
    },
};
static const bool asked = (watcher = &own, true);

#define CODE __builtin_return_address(0)
#define ACCESS(size) \
    void __tsan_read##size(void* x) { look(x, size, false, CODE); } \
    void __tsan_write##size(void* x) { look(x, size, true, CODE); } \
    void __tsan_unaligned_read##size(void* x) { look(x, size, false, CODE); } \
    void __tsan_unaligned_write##size(void* x) { look(x, size, true, CODE); }
extern "C" {
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __tsan_read_range(void* x, unsigned long size) { look(x, size, false, CODE); }
void __tsan_write_range(void* x, unsigned long size) { look(x, size, true, CODE); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

// A kernel may look at these bytes in the next launch.
void give(const void* first, unsigned long bytes) { given.push_back({(unsigned long)first, bytes}); }

// How many races there were since the last call; `told` gets a line for each of the first of them.
unsigned races(const char** told) {
    static std::vector<char> last;
    last.swap(report);
    last.push_back(0);
    report.clear();
    *told = last.data();
    const unsigned count = found;
    found = 0;
    given.clear();
    return count;
}
}

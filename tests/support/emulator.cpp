// The threads of a block as fibers, and where they wait for each other; see emulator.h.
#include "emulator.h"
#include "races.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

Index threadIdx, blockIdx;
unsigned char* shared_memory;
double* slots;
volatile bool atomically = false;
Watcher* watcher = nullptr;

struct Group {  // threads that wait for each other: a cluster, a block, or a warp
    unsigned size = 0, arrived = 0, ended = 0;
    unsigned long meetings = 0, ordered = 0;  // after the second kind each sees what the others wrote
    int line = 0;  // of the barrier that the arrived ones wait at
};
struct Fiber {
    ucontext_t start;
    jmp_buf place;
    bool started, done;
    Group* group;  // that it waits for
    unsigned long meeting;
};
struct Block {
    std::vector<unsigned char> bytes;
    std::vector<double> slots;
    std::vector<Fiber> fibers;
    std::vector<Group> warps;
    Group all;
};
static std::vector<Block> blocks_of_cluster;
static Group everyone;
static Block* block;
static bool backwards = false;
static jmp_buf scheduler;
static void (*body)(void*);
static void* kernel;

static unsigned warp() { return threadIdx.x / 32 * 32; }
static void fiber() {
    body(kernel);
    block->fibers[threadIdx.x].done = true;
    for (Group* group : {&everyone, &block->all, &block->warps[threadIdx.x / 32]}) ++group->ended;
    _longjmp(scheduler, 1);
}

// A context begins a fiber; from then on jumps, which ask nothing of the system, lead out of it and back.
static void leave(Fiber& self) {
    if (_setjmp(self.place) == 0) _longjmp(scheduler, 1);
}
static void resume(unsigned first, unsigned of_cluster, unsigned i) {
    block = &blocks_of_cluster[of_cluster];
    blockIdx.x = first + of_cluster;
    threadIdx.x = i;
    shared_memory = block->bytes.data();
    slots = block->slots.data();
    Fiber& next = block->fibers[i];
    if (_setjmp(scheduler) != 0) return;
    if (next.started) _longjmp(next.place, 1);
    next.started = true;
    setcontext(&next.start);
}

static void apart(int line, int other) {
    std::fprintf(stderr, "threads of a group meet at different barriers, lines %d and %d (0: the end)\n", line, other);
    std::abort();
}

// Wait until all threads of the group have come here. Votes and shuffles do not order what they read and write in memory.
static void barrier(Group& group, int line, bool orders = true) {
    Fiber& self = block->fibers[threadIdx.x];
    self.group = &group;
    self.meeting = group.meetings;
    if (group.arrived++ == 0) group.line = line;
    if (group.line != line) apart(line, group.line);
    if (group.arrived == group.size) {
        group.arrived = 0;
        ++group.meetings;
        group.ordered += orders;
    }
    while (group.meetings == self.meeting) {
        if (group.ended > 0) apart(line, 0);
        leave(self);
    }
}
void sync_cluster(int line) { barrier(everyone, line); }
void sync_block(int line) { barrier(block->all, line); }
void sync_warp(int line) { barrier(block->warps[threadIdx.x / 32], line); }
void meet_warp(int line) { barrier(block->warps[threadIdx.x / 32], line, false); }
unsigned char* of_block(unsigned char* place, unsigned other) {
    return blocks_of_cluster.at(other).bytes.data() + (place - shared_memory);
}
unsigned ballot(bool x, int line) {
    slots[threadIdx.x] = x;
    meet_warp(line);
    unsigned votes = 0;
    for (unsigned i = 0; i < 32 && warp() + i < block->fibers.size(); ++i) votes |= (slots[warp() + i] != 0) << i;
    meet_warp(line);
    return votes;
}
bool block_or(bool x, int line) {
    slots[threadIdx.x] = x;
    sync_block(line);
    const bool any = std::any_of(slots, slots + block->fibers.size(), [](double slot) { return slot != 0; });
    sync_block(line);
    return any;
}

static std::vector<char> stacks;
static constexpr unsigned long STACK = 64 << 10, HOST = 4 << 10;
static const void* host;  // its stack, where the arguments of the kernel are

static bool between(const void* address, const void* first, unsigned long bytes) {
    return (unsigned long)address - (unsigned long)first < bytes;
}
bool is_private(const void* address) {
    for (const void* own : {(const void*)&threadIdx, (const void*)&blockIdx, (const void*)&shared_memory, (const void*)&slots, (const void*)&atomically})
        if (address == own) return true;
    return !block || between(address, host, HOST) || between(address, stacks.data(), stacks.size()) || between(address, slots, block->slots.size() * sizeof(double));
}
bool is_shared(const void* address) {
    for (const Block& each : blocks_of_cluster)
        if (between(address, each.bytes.data(), each.bytes.size())) return true;
    return false;
}
Moment now() {
    return {blockIdx.x, threadIdx.x, everyone.ordered, block->all.ordered, block->warps[threadIdx.x / 32].ordered};
}

static Block fresh(unsigned threads, unsigned long bytes, char* stack) {
    Block made;
    made.bytes.assign(bytes, 0xff);  // NaN, so that a value read before it was written shows
    made.slots.assign(threads, 0);
    made.fibers.assign(threads, Fiber{});
    made.all = Group{threads};
    for (unsigned first = 0; first < threads; first += 32) made.warps.push_back(Group{std::min(32u, threads - first)});
    for (unsigned i = 0; i < threads; ++i) {
        ucontext_t& start = made.fibers[i].start;
        getcontext(&start);
        start.uc_stack.ss_sp = stack + i * STACK;
        start.uc_stack.ss_size = STACK;
        makecontext(&start, fiber, 0);
    }
    return made;
}

// Every thread of the block goes on as far as it can without the other blocks. False where none could.
static bool run_block(unsigned first, unsigned of_cluster) {
    std::vector<Fiber>& fibers = blocks_of_cluster[of_cluster].fibers;
    const unsigned threads = fibers.size();
    bool any = false;
    for (bool moved = true; moved; any = any || moved) {
        moved = false;
        for (unsigned k = 0; k < threads; ++k) {
            const Fiber& next = fibers[backwards ? threads - 1 - k : k];
            if (next.done || (next.started && next.group->meetings == next.meeting && next.group->ended == 0)) continue;
            resume(first, of_cluster, &next - fibers.data());
            moved = true;
        }
    }
    return any;
}

extern "C" void set_order(int given) { backwards = given; }

void run(unsigned blocks, unsigned threads, unsigned long bytes, unsigned cluster, void (*given)(void*), void* given_kernel) {
    body = given;
    host = kernel = given_kernel;
    stacks.resize(threads * cluster * STACK);
    if (watcher) watcher->begin(cluster);
    for (unsigned first = 0; first < blocks; first += cluster) {
        everyone = Group{threads * cluster};
        blocks_of_cluster.clear();
        for (unsigned i = 0; i < cluster; ++i) blocks_of_cluster.push_back(fresh(threads, bytes, &stacks[i * threads * STACK]));
        for (bool any = true; any;) {
            any = false;
            for (unsigned i = 0; i < cluster; ++i) any = run_block(first, backwards ? cluster - 1 - i : i) || any;
        }
        if (everyone.ended < everyone.size) apart(everyone.line, block->all.line);
        for (const Block& each : blocks_of_cluster)
            if (watcher) watcher->forget(each.bytes.data(), each.bytes.size());
    }
    block = nullptr;
    stacks = {};  // 64 MB, for each of the kernels
}

// The threads of a block as fibers, and where they wait for each other; see emulator.h.
#include "emulator.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

Index threadIdx, blockIdx;
unsigned char* shared_memory;
double* slots;

struct Group {  // threads that wait for each other: a block, or a warp
    unsigned size = 0, arrived = 0, ended = 0;
    unsigned long meetings = 0;
    int line = 0;  // of the barrier that the arrived ones wait at
};
static Group block;
static std::vector<Group> warps;
struct Fiber { ucontext_t start; jmp_buf place; bool started, done; };
static std::vector<Fiber> fibers;
static std::vector<std::vector<char>> stacks;
static jmp_buf scheduler;
static void (*body)(void*);
static void* kernel;

static unsigned warp() { return threadIdx.x / 32 * 32; }
static void fiber() {
    body(kernel);
    fibers[threadIdx.x].done = true;
    ++block.ended;
    ++warps[threadIdx.x / 32].ended;
    _longjmp(scheduler, 1);
}

// A context begins a fiber; from then on jumps, which ask nothing of the system, lead out of it and back.
static void leave(unsigned self) {
    if (_setjmp(fibers[self].place) == 0) _longjmp(scheduler, 1);
}
static void resume(unsigned i) {
    threadIdx.x = i;
    if (_setjmp(scheduler) != 0) return;
    if (fibers[i].started) _longjmp(fibers[i].place, 1);
    fibers[i].started = true;
    setcontext(&fibers[i].start);
}

static void apart(int line, int other) {
    std::fprintf(stderr, "threads of a group meet at different barriers, lines %d and %d (0: the end)\n", line, other);
    std::abort();
}

// Wait until all threads of the group have come here.
static void barrier(Group& group, int line) {
    const unsigned self = threadIdx.x;
    const unsigned long meeting = group.meetings;
    if (group.arrived++ == 0) group.line = line;
    if (group.line != line) apart(line, group.line);
    if (group.arrived == group.size) {
        group.arrived = 0;
        ++group.meetings;
    }
    while (group.meetings == meeting) {
        if (group.ended > 0) apart(line, 0);
        leave(self);
    }
}
void sync_block(int line) { barrier(block, line); }
void sync_warp(int line) { barrier(warps[threadIdx.x / 32], line); }
unsigned ballot(bool x, int line) {
    slots[threadIdx.x] = x;
    sync_warp(line);
    unsigned votes = 0;
    for (unsigned i = 0; i < 32 && warp() + i < fibers.size(); ++i) votes |= (slots[warp() + i] != 0) << i;
    sync_warp(line);
    return votes;
}
bool block_or(bool x, int line) {
    slots[threadIdx.x] = x;
    sync_block(line);
    const bool any = std::any_of(slots, slots + fibers.size(), [](double slot) { return slot != 0; });
    sync_block(line);
    return any;
}

void run(unsigned blocks, unsigned threads, unsigned long bytes, void (*given)(void*), void* given_kernel) {
    body = given;
    kernel = given_kernel;
    std::vector<unsigned char> bytes_of_block;
    std::vector<double> slot_of_thread;
    stacks.assign(threads, std::vector<char>(64 << 10));
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        bytes_of_block.assign(bytes, 0xff);  // NaN, so that a value read before it was written shows
        slot_of_thread.assign(threads, 0);
        shared_memory = bytes_of_block.data();
        slots = slot_of_thread.data();
        fibers.assign(threads, Fiber{});
        block = Group{threads};
        warps.clear();
        for (unsigned first = 0; first < threads; first += 32) warps.push_back(Group{std::min(32u, threads - first)});
        for (unsigned i = 0; i < threads; ++i) {
            ucontext_t& start = fibers[i].start;
            getcontext(&start);
            start.uc_stack.ss_sp = stacks[i].data();
            start.uc_stack.ss_size = stacks[i].size();
            makecontext(&start, fiber, 0);
        }
        for (bool running = true; running;) {
            running = false;
            for (unsigned i = 0; i < threads; ++i)
                if (!fibers[i].done) { running = true; resume(i); }
        }
    }
}

// The threads of a block as fibers, and where they wait for each other; see emulator.h.
#include "emulator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

Index threadIdx, blockIdx;
unsigned char* shared_memory;
double* slots;

struct Arrivals { std::vector<int> times, line; };  // how many barriers each thread has come to, and where the last one was
static Arrivals in_block, in_warp;
static std::vector<ucontext_t> fibers;
static std::vector<std::vector<char>> stacks;
static std::vector<bool> done;
static ucontext_t scheduler;
static void (*body)(void*);
static void* kernel;

static void fiber() { const unsigned self = threadIdx.x; body(kernel); done[self] = true; }

// Wait until threads first..last have come here too. Whoever is one barrier ahead has met the others here before.
static void barrier(Arrivals& arrivals, unsigned first, unsigned last, int line) {
    const unsigned self = threadIdx.x;
    const int mine = ++arrivals.times[self];
    arrivals.line[self] = line;
    for (;;) {
        bool all = true;
        for (unsigned i = first; i < last; ++i) {
            const bool elsewhere = arrivals.times[i] == mine && arrivals.line[i] != line;
            if (elsewhere || (done[i] && arrivals.times[i] < mine)) {
                std::fprintf(stderr, "threads %u and %u meet at different barriers, line %d\n", self, i, line);
                std::abort();
            }
            all = all && arrivals.times[i] >= mine;
        }
        if (all) return;
        swapcontext(&fibers[self], &scheduler);
        threadIdx.x = self;
    }
}
void sync_block(int line) { barrier(in_block, 0, fibers.size(), line); }
static unsigned warp() { return threadIdx.x / 32 * 32; }
void sync_warp(int line) { barrier(in_warp, warp(), std::min<unsigned>(warp() + 32, fibers.size()), line); }
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

void run(unsigned blocks, unsigned threads, std::size_t bytes, void (*given)(void*), void* given_kernel) {
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
        fibers.assign(threads, ucontext_t());
        done.assign(threads, false);
        for (Arrivals* arrivals : {&in_block, &in_warp}) {
            arrivals->times.assign(threads, 0);
            arrivals->line.assign(threads, 0);
        }
        for (unsigned i = 0; i < threads; ++i) {
            getcontext(&fibers[i]);
            fibers[i].uc_stack.ss_sp = stacks[i].data();
            fibers[i].uc_stack.ss_size = stacks[i].size();
            fibers[i].uc_link = &scheduler;
            makecontext(&fibers[i], fiber, 0);
        }
        for (bool running = true; running;) {
            running = false;
            for (unsigned i = 0; i < threads; ++i)
                if (!done[i]) { running = true; threadIdx.x = i; swapcontext(&scheduler, &fibers[i]); }
        }
    }
}

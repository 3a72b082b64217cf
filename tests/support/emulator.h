// CUDA C++ on the CPU, one block at a time: every thread is a fiber that runs until its next barrier, vote or shuffle.
// Threads that meet at different barriers are found and end the program: on a GPU they would wait for ever. Races are not
// found: compute-sanitizer does that on a GPU.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <ucontext.h>
#include <vector>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#undef __restrict__
#define __restrict__
#define SHARED(name) unsigned char* name = shared_memory.data()
#define __syncthreads() sync_block(__LINE__)
#define __syncthreads_or(x) block_or(x, __LINE__)
#define __syncwarp() sync_warp(__LINE__)
#define __shfl_xor_sync(mask, value, lanes) shuffle(value, threadIdx.x ^ (lanes), __LINE__)
#define __shfl_sync(mask, value, lane, width) shuffle(value, threadIdx.x / (width) * (width) + (lane), __LINE__)
#define __ballot_sync(mask, x) ballot(x, __LINE__)
#define __any_sync(mask, x) (ballot(x, __LINE__) != 0)
using std::copysign; using std::exp; using std::expm1; using std::fabs; using std::fmax; using std::fmin; using std::frexp;
using std::exp2; using std::floor; using std::ldexp; using std::log; using std::log1p; using std::max; using std::min;
using std::pow; using std::sqrt;

struct Index { unsigned x; };
static Index threadIdx, blockIdx;
static std::vector<unsigned char> shared_memory;
static std::vector<ucontext_t> fibers;
static std::vector<std::vector<char>> stacks;
static std::vector<bool> done;
static std::vector<double> slots;
struct Arrivals { std::vector<int> times, line; };  // how many barriers each thread has come to, and where the last one was
static Arrivals in_block, in_warp;
static ucontext_t scheduler;
static std::function<void()> body;

static float rsqrt(float x) { return 1.0f / std::sqrt(x); }
static double rsqrt(double x) { return 1.0 / std::sqrt(x); }
static float __fdividef(float a, float b) { return a / b; }
template <class T> void atomicAdd(T* x, T y) { *x += y; }
template <class T> void atomicMax(T* x, T y) { *x = std::max(*x, y); }

static void fiber() { const unsigned self = threadIdx.x; body(); done[self] = true; }

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
static void sync_block(int line) { barrier(in_block, 0, fibers.size(), line); }
static unsigned warp() { return threadIdx.x / 32 * 32; }
static void sync_warp(int line) { barrier(in_warp, warp(), std::min<unsigned>(warp() + 32, fibers.size()), line); }
template <class T> T shuffle(T x, unsigned from, int line) {
    slots[threadIdx.x] = x;
    sync_warp(line);
    const T y = (T)slots[from];
    sync_warp(line);
    return y;
}
static unsigned ballot(bool x, int line) {
    slots[threadIdx.x] = x;
    sync_warp(line);
    unsigned votes = 0;
    for (unsigned i = 0; i < 32 && warp() + i < fibers.size(); ++i) votes |= (slots[warp() + i] != 0) << i;
    sync_warp(line);
    return votes;
}
static bool block_or(bool x, int line) {
    slots[threadIdx.x] = x;
    sync_block(line);
    const bool any = std::any_of(slots.begin(), slots.end(), [](double slot) { return slot != 0; });
    sync_block(line);
    return any;
}

static void launch(unsigned blocks, unsigned threads, size_t bytes, std::function<void()> kernel) {
    body = kernel;
    stacks.assign(threads, std::vector<char>(64 << 10));
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        shared_memory.assign(bytes, 0xff);  // NaN, so that a value read before it was written shows
        fibers.assign(threads, ucontext_t());
        done.assign(threads, false);
        slots.assign(threads, 0);
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

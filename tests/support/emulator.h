// CUDA C++ on the CPU, one block, or cluster of blocks, at a time: every thread is a fiber that runs until its next barrier,
// vote or shuffle, and every block of a cluster until it waits for another. Threads that meet at different barriers are found
// and end the program: on a GPU they would wait for ever. Races are found where every access to memory is told to races.cpp; and
// set_order(1) lets the last block and thread go first: what depends on the order then has other bits. What runs the
// fibers is in emulator.cpp, which is compiled once for all kernels: this file stays short and includes nothing, since each
// kernel includes it: <cmath> alone is 20,000 lines.
#pragma once
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#undef __restrict__
#define __restrict__
#define SHARED(name) unsigned char* name = shared_memory
#define __syncthreads() sync_block(__LINE__)
#define __syncthreads_or(x) block_or(x, __LINE__)
#define __syncwarp() sync_warp(__LINE__)
#define cluster_sync() sync_cluster(__LINE__)
#define __shfl_xor_sync(mask, value, lanes) shuffle(value, threadIdx.x ^ (lanes), __LINE__)
#define __shfl_sync(mask, value, lane, width) shuffle(value, threadIdx.x / (width) * (width) + (lane), __LINE__)
#define __ballot_sync(mask, x) ballot(x, __LINE__)
#define __any_sync(mask, x) (ballot(x, __LINE__) != 0)
#define MATHEMATICS(name) \
    inline float name(float x) { return __builtin_##name##f(x); } \
    inline double name(double x) { return __builtin_##name(x); }
#define OF_TWO(name) \
    inline float name(float x, float y) { return __builtin_##name##f(x, y); } \
    inline double name(double x, double y) { return __builtin_##name(x, y); }
MATHEMATICS(exp) MATHEMATICS(exp2) MATHEMATICS(expm1) MATHEMATICS(fabs) MATHEMATICS(floor) MATHEMATICS(log) MATHEMATICS(log1p)
MATHEMATICS(sqrt) OF_TWO(copysign) OF_TWO(fmax) OF_TWO(fmin) OF_TWO(pow)
inline float frexp(float x, int* k) { return __builtin_frexpf(x, k); }
inline double frexp(double x, int* k) { return __builtin_frexp(x, k); }
inline float ldexp(float x, int k) { return __builtin_ldexpf(x, k); }
inline double ldexp(double x, int k) { return __builtin_ldexp(x, k); }
template <class T> T max(T a, T b) { return a < b ? b : a; }
template <class T> T min(T a, T b) { return b < a ? b : a; }

struct Index { unsigned x; };
extern Index threadIdx, blockIdx;
extern unsigned char* shared_memory;
extern double* slots;  // of each thread, for votes and shuffles

void sync_cluster(int line);
void sync_block(int line);
void sync_warp(int line);
void meet_warp(int line);  // the same, but what was written before need not be seen behind it
unsigned ballot(bool x, int line);
bool block_or(bool x, int line);
unsigned char* of_block(unsigned char* place, unsigned other);  // the same place in another block of the cluster
void run(unsigned blocks, unsigned threads, unsigned long bytes, unsigned cluster, void (*body)(void*), void* kernel);

static float rsqrt(float x) { return 1.0f / sqrt(x); }
static double rsqrt(double x) { return 1.0 / sqrt(x); }
static float __fdividef(float a, float b) { return a / b; }
extern volatile bool atomically;  // what is read and written now
template <class T> void atomicAdd(T* x, T y) { atomically = true; *x += y; atomically = false; }
template <class T> void atomicMax(T* x, T y) { atomically = true; *x = max(*x, y); atomically = false; }

template <class T> T* in_block(T* x, unsigned other) { return (T*)of_block((unsigned char*)x, other); }

template <class T> T shuffle(T x, unsigned from, int line) {
    slots[threadIdx.x] = x;
    meet_warp(line);
    const T y = (T)slots[from];
    meet_warp(line);
    return y;
}

template <class Kernel> void launch(unsigned blocks, unsigned threads, unsigned long bytes, Kernel kernel, unsigned cluster = 1) {
    run(blocks, threads, bytes, cluster, [](void* given) { (*static_cast<Kernel*>(given))(); }, &kernel);
}

// What Python calls: chooses the kernels by the processor, and spreads a batch over threads.

#include "table.h"

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

#if defined(__x86_64__)
#include <cpuid.h>
extern "C" const Table spectralgrad_baseline, spectralgrad_avx2, spectralgrad_avx512;
#else
extern "C" const Table spectralgrad_baseline;
#endif

namespace {

// The best that processor and system offer: 0 for the baseline, 1 for AVX2 and FMA, 2 for AVX-512.
int best_level() {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const bool fma = c >> 12 & 1, saves = c >> 27 & 1, avx = c >> 28 & 1;
    if (!(fma && saves && avx) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // which registers the system saves
    const bool avx2 = b >> 5 & 1, bits = b >> 3 & 1 && b >> 8 & 1;
    const bool avx512 = b >> 16 & 1 && b >> 17 & 1 && b >> 28 & 1 && b >> 30 & 1 && b >> 31 & 1;  // F DQ CD BW VL
    if ((low & 0x6) != 0x6 || !avx2 || !bits) return 0;
    return (low & 0xe6) == 0xe6 && avx512 ? 2 : 1;
#else
    return 0;
#endif
}

const Table* of_level(int level) {
#if defined(__x86_64__)
    return level == 2 ? &spectralgrad_avx512 : level == 1 ? &spectralgrad_avx2 : &spectralgrad_baseline;
#else
    return &spectralgrad_baseline;
#endif
}

const Table* table = of_level(best_level());

// OpenMP's, out of the library that torch has loaded: both null where there is none.
void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
int (*in_parallel)();

// A batch on its way: each thread takes the next share until none is left. A result does not depend on its place, so
// neither does it on who computed it.
struct Batch {
    Work work;
    const Call* call;
    int64_t matrices, share, next;
    int status;
};

void take_shares(void* of) {
    Batch& batch = *(Batch*)of;
    for (;;) {
        const int64_t first = __atomic_fetch_add(&batch.next, batch.share, __ATOMIC_RELAXED);
        if (first >= batch.matrices) return;
        const int64_t last = first + batch.share < batch.matrices ? first + batch.share : batch.matrices;
        __atomic_fetch_or(&batch.status, batch.work(*batch.call, first, last), __ATOMIC_RELAXED);
    }
}

constexpr int SHARES = 4;  // for each thread: they even out what the system takes from one of them

int run(Kernel kernel, int is_double, const Call& call, int64_t matrices, int threads) {
    const Work work = table->work[kernel][is_double];
    if (threads <= 1 || !parallel || in_parallel()) return work(call, 0, matrices);
    const int64_t tile = 4 * table->bytes / (is_double ? 8 : 4), shares = (int64_t)SHARES * threads;
    const int64_t tiles = (matrices + tile * shares - 1) / (tile * shares);
    Batch batch = {work, &call, matrices, tiles * tile, 0, 0};
    parallel(take_shares, &batch, (unsigned)threads, 0);
    return batch.status;
}

}  // namespace

#ifndef SOURCES
#define SOURCES ""
#endif
EXPORT const char* spectralgrad_sources() { return SOURCES; }  // a digest of what this was compiled from

// The level in use; one that is given and that the processor has is used from now on.
EXPORT int spectralgrad_level(int level) {
    if (level >= 0 && level <= best_level()) table = of_level(level);
    return table == of_level(2) ? 2 : table == of_level(1) ? 1 : 0;
}

EXPORT void spectralgrad_team(void* start, void* asks) {
    parallel = (void (*)(void (*)(void*), void*, unsigned, unsigned))start;
    in_parallel = (int (*)())asks;
}

#define FOR_BOTH(define) define(f32, 0) define(f64, 1)

// M (B, n, n) -> w (B, n), ascending, and V (B, n, n) in columns; without V the values alone.
#define EIGH_(name, is_double)                                                                                            \
    EXPORT int spectralgrad_eigh_##name(int n, const void* M, void* w, void* V, int64_t B, int threads) {                 \
        const Call call = {n, n, 0, 0, {M}, {w, V}, {}};                                                                  \
        return run(V ? EIGH : EIGVALSH, is_double, call, B, threads);                                                     \
    }
FOR_BOTH(EIGH_)

// in: V, w, gV, gw or null, K or null, each (B, n, n) or (B, n) -> M (B, n, n). layout: 1 if V lies in columns, 4 if gV does.
// rule: as in pullback.h; free: whether K is free of scale.
#define PULLBACK_(name, is_double)                                                                                         \
    EXPORT int spectralgrad_pullback_##name(int n, const void* V, const void* w, const void* gV, const void* gw,          \
                                            const void* K, void* M, int64_t B, int layout, int rule, int free,            \
                                            double number, double close, double noise, int threads) {                     \
        const Call call = {n, free, rule, layout, {V, w, gV, gw, K}, {M}, {number, close, noise}};                        \
        return run(PULLBACK, is_double, call, B, threads);                                                                \
    }
FOR_BOTH(PULLBACK_)

// V, w, f(w) or null -> f(M), and how many eigenvalues are zero to rounding is added to `clamped` unless it is null. kind and
// border: as in functions.h, 8 more if there is a floor. layout: 1 if V lies in columns.
#define VALUE_(name, is_double)                                                                                            \
    EXPORT int spectralgrad_value_##name(int n, const void* V, const void* w, const void* given, void* out, void* clamped, \
                                         int64_t B, int layout, int kind, int border, double alpha, double floor,          \
                                         int threads) {                                                                    \
        const Call call = {n, border, kind, layout, {V, w, given}, {out, clamped}, {alpha, floor}};                        \
        return run(VALUE, is_double, call, B, threads);                                                                    \
    }
FOR_BOTH(VALUE_)

// V, w, G, F or null -> the derivative of f in the direction G, which is that of a loss if G is its gradient by f(M).
#define DERIVATIVE_(name, is_double)                                                                                       \
    EXPORT int spectralgrad_derivative_##name(int n, const void* V, const void* w, const void* G, const void* given,       \
                                              void* out, int64_t B, int layout, int kind, int border, double alpha,        \
                                              double floor, int threads) {                                                 \
        const Call call = {n, border, kind, layout, {V, w, G, given}, {out}, {alpha, floor}};                              \
        return run(DERIVATIVE, is_double, call, B, threads);                                                               \
    }
FOR_BOTH(DERIVATIVE_)

// A (B, m, n), m >= n -> U^T (B, n, m), s (B, n), descending, and V^T (B, n, n). layout: 1 if A lies in columns.
#define SVD_(name, is_double)                                                                                              \
    EXPORT int spectralgrad_svd_##name(int m, int n, const void* A, void* U, void* s, void* V, int64_t B, int layout,     \
                                       int threads) {                                                                      \
        const Call call = {n, m, 0, layout, {A}, {U, s, V}, {}};                                                           \
        return run(SVD, is_double, call, B, threads);                                                                      \
    }
FOR_BOTH(SVD_)

// A (B, n, n), n = 2 or 3 -> the polar factor Q, singular values and V; special: the nearest rotation.
#define POLAR_(name, is_double)                                                                                            \
    EXPORT int spectralgrad_polar_##name(int n, const void* A, void* Q, void* s, void* V, int64_t B, int layout,          \
                                         int special, int threads) {                                                       \
        const Call call = {n, n, special, layout, {A}, {Q, s, V}, {}};                                                     \
        return run(POLAR, is_double, call, B, threads);                                                                    \
    }
FOR_BOTH(POLAR_)

// Q, s, V and a direction E -> that of Q. layout: 1, 4 and 8 if Q, V and E lie in columns.
#define POLAR_DERIVATIVE_(name, is_double)                                                                                 \
    EXPORT int spectralgrad_polar_derivative_##name(int n, const void* Q, const void* s, const void* V, const void* E,    \
                                                    void* out, int64_t B, int layout, double eps, int threads) {           \
        const Call call = {n, n, 0, layout, {Q, s, V, E}, {out}, {eps}};                                                   \
        return run(POLAR_DERIVATIVE, is_double, call, B, threads);                                                         \
    }
FOR_BOTH(POLAR_DERIVATIVE_)

// The kernels of one .cu file, told apart by what is defined for it, callable from Python through ctypes; see emulator.h.
#include "emulator.h"
#include KERNEL

typedef unsigned long long counter;

#if defined(LANES)  // jacobi.cu
extern "C" void run_eigh(unsigned blocks, unsigned threads, unsigned bytes, const real* M, const real* start, real* w, real* V,
                         real* workspace, counter* nonfinite, int* sweeps, int64 batch, int n) {
    launch(blocks, threads, bytes, [=] { eigh(M, start, w, V, workspace, nonfinite, sweeps, batch, n); });
}
#elif defined(KIND)  // spectral.cu
extern "C" void run_value(unsigned blocks, unsigned threads, unsigned bytes, const real* V, const real* w, const real* given,
                          real* out, const real* weight, real* scaled, counter* clamped, int n, double alpha, double floor) {
    launch(blocks, threads, bytes, [=] { value(V, w, given, out, weight, scaled, clamped, n, alpha, floor); });
}
extern "C" void run_derivative(unsigned blocks, unsigned threads, unsigned bytes, const real* V, const real* w,
                               const real* given, const real* G, real* out, double scale, int n, double alpha,
                               double floor) {
    launch(blocks, threads, bytes, [=] { derivative(V, w, given, G, out, scale, n, alpha, floor); });
}
#elif defined(TILE)  // power_series.cu
extern "C" void run_pullback(unsigned blocks, unsigned threads, unsigned bytes, const real* V, const real* w, const bool* kept,
                             const real* gw, const real* gV, real* out, int n, int steps) {
    launch(blocks, threads, bytes, [=] { pullback(V, w, kept, gw, gV, out, n, steps); });
}
#else  // power.cu
extern "C" void run_quotients(unsigned blocks, unsigned threads, unsigned bytes, const real* M, const real* V, real* out,
                              int n) {
    launch(blocks, threads, bytes, [=] { quotients(M, V, out, n); });
}
extern "C" void run_iterate(unsigned blocks, unsigned threads, unsigned bytes, const real* H, const real* start, real* w,
                            real* V, int* rank, real* size, real* rows, int n, int steps) {
    launch(blocks, threads, bytes, [=] { iterate(H, start, w, V, rank, size, rows, n, steps); });
}
extern "C" void run_retrace(unsigned blocks, unsigned threads, unsigned bytes, const real* H, const int* rank,
                            const real* size, const real* rows, const real* gw, const real* gV, real* out, int n, int steps) {
    launch(blocks, threads, bytes, [=] { retrace(H, rank, size, rows, gw, gV, out, n, steps); });
}
#endif

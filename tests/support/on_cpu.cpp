// The kernels of jacobi.cu or spectral.cu, callable from Python through ctypes; see emulator.h.
#include "emulator.h"
#include KERNEL

typedef unsigned long long counter;

#ifdef LANES
extern "C" void run_eigh(unsigned blocks, unsigned threads, unsigned bytes, const real* M, const real* start, real* w, real* V,
                         real* workspace, counter* nonfinite, int* sweeps, int64 batch, int n) {
    launch(blocks, threads, bytes, [=] { eigh(M, start, w, V, workspace, nonfinite, sweeps, batch, n); });
}
#else
extern "C" void run_value(unsigned blocks, unsigned threads, unsigned bytes, const real* V, const real* w, const real* given,
                          real* out, const real* weight, real* scaled, counter* clamped, int n, double alpha, double floor) {
    launch(blocks, threads, bytes, [=] { value(V, w, given, out, weight, scaled, clamped, n, alpha, floor); });
}
extern "C" void run_derivative(unsigned blocks, unsigned threads, unsigned bytes, const real* V, const real* w,
                               const real* given, const real* G, real* out, double scale, int n, double alpha,
                               double floor) {
    launch(blocks, threads, bytes, [=] { derivative(V, w, given, G, out, scale, n, alpha, floor); });
}
#endif

// The kernels of one .cu file, callable from Python through ctypes; see emulator.h.
#include "emulator.h"
#include KERNEL

typedef unsigned long long counter;

#ifndef CLUSTER
#define CLUSTER 1
#endif
#if defined(OF_jacobi) || defined(OF_jacobi_cluster)
extern "C" void run_eigh(unsigned blocks, unsigned threads, unsigned bytes, const real* M, const real* start, real* w, real* V,
                         real* workspace, counter* nonfinite, int* sweeps, int64 batch, int n) {
    launch(blocks, threads, bytes, [=] { eigh(M, start, w, V, workspace, nonfinite, sweeps, batch, n); }, CLUSTER);
}
#elif defined(OF_spectral)
extern "C" void run_value(unsigned blocks, unsigned threads, unsigned bytes, const real* V, const real* w, const real* given,
                          real* out, const real* weight, real* scaled, counter* clamped, int n, double alpha, double floor) {
    launch(blocks, threads, bytes, [=] { value(V, w, given, out, weight, scaled, clamped, n, alpha, floor); });
}
extern "C" void run_derivative(unsigned blocks, unsigned threads, unsigned bytes, const real* V, const real* w,
                               const real* given, const real* G, real* out, double scale, int n, double alpha,
                               double floor) {
    launch(blocks, threads, bytes, [=] { derivative(V, w, given, G, out, scale, n, alpha, floor); });
}
#elif defined(OF_eigenpairs)
extern "C" void run_pullback(unsigned blocks, unsigned threads, unsigned bytes, const real* V, const real* w, const real* K,
                             const real* gw, const real* gV, real* out, int n, double number) {
    launch(blocks, threads, bytes, [=] { pullback(V, w, K, gw, gV, out, n, number); });
}
#elif defined(OF_power_series)
extern "C" void run_pullback(unsigned blocks, unsigned threads, unsigned bytes, const real* V, const real* w, const bool* kept,
                             const real* gw, const real* gV, real* out, int n, int steps) {
    launch(blocks, threads, bytes, [=] { pullback(V, w, kept, gw, gV, out, n, steps); });
}
#elif defined(OF_power)
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
#elif defined(OF_scale)
extern "C" void run_exponent(unsigned blocks, unsigned threads, unsigned bytes, const real* x, real* out, int64 size) {
    launch(blocks, threads, bytes, [=] { exponent(x, out, size); });
}
extern "C" void run_shift(unsigned blocks, unsigned threads, unsigned bytes, const real* x, const real* k, real* out, int64 size,
                          int64 count) {
    launch(blocks, threads, bytes, [=] { shift(x, k, out, size, count); });
}
#elif defined(OF_syev)
extern "C" void run_look(unsigned blocks, unsigned threads, unsigned bytes, const Number* M, State* states, Number* q,
                         counter* nonfinite, int n, real beta) {
    launch(blocks, threads, bytes, [=] { look(M, states, q, nonfinite, n, beta); });
}
extern "C" void run_prepare(unsigned blocks, unsigned threads, unsigned bytes, const Number* M, const State* states, const Number* q,
                            Number* H, int n, int64 count) {
    launch(blocks, threads, bytes, [=] { prepare(M, states, q, H, n, count); });
}
extern "C" void run_finish(unsigned blocks, unsigned threads, unsigned bytes, const State* states, const int* failed, real* w,
                           Number* V, counter* failures, int n, real beta) {
    launch(blocks, threads, bytes, [=] { finish(states, failed, w, V, failures, n, beta); });
}
#elif defined(OF_svd)
extern "C" void run_svd(unsigned blocks, unsigned threads, unsigned bytes, const real* A, const int* exponents, real* left, real* S,
                        real* right, real* workspace, counter* nonfinite, int* sweeps, int64 batch, int m, int n, int64 matrix,
                        int64 row, int64 column, int left_row, int left_column, int right_row, int right_column) {
    launch(blocks, threads, bytes, [=] {
        svd(A, exponents, left, S, right, workspace, nonfinite, sweeps, batch, m, n, matrix, row, column, left_row, left_column,
            right_row, right_column);
    });
}
#elif defined(OF_qr)
extern "C" void run_factor(unsigned blocks, unsigned threads, unsigned bytes, const real* A, real* reflectors, real* taus, real* R,
                           int* exponents, int m, int n, int64 matrix, int64 row, int64 column) {
    launch(blocks, threads, bytes, [=] { factor(A, reflectors, taus, R, exponents, m, n, matrix, row, column); });
}
extern "C" void run_apply(unsigned blocks, unsigned threads, unsigned bytes, const real* reflectors, const real* taus,
                          const int* exponents, const real* U, real* out, int m, int n, int row, int column) {
    launch(blocks, threads, bytes, [=] { apply(reflectors, taus, exponents, U, out, m, n, row, column); });
}
#elif defined(OF_small_svd)
extern "C" void run_svd(unsigned blocks, unsigned threads, unsigned bytes, const real* A, const int* exponents, real* left, real* S,
                        real* right, counter* nonfinite, int64 batch, int64 matrix, int64 row, int64 column, int left_row,
                        int left_column, int right_row, int right_column) {
    launch(blocks, threads, bytes, [=] {
        svd(A, exponents, left, S, right, nonfinite, batch, matrix, row, column, left_row, left_column, right_row, right_column);
    });
}
extern "C" void run_polar(unsigned blocks, unsigned threads, unsigned bytes, const real* A, real* Q, real* sigma, real* V,
                          counter* nonfinite, counter* not_unique, int64 batch, int64 matrix, int64 row, int64 column, int special,
                          double eps) {
    launch(blocks, threads, bytes, [=] { polar(A, Q, sigma, V, nonfinite, not_unique, batch, matrix, row, column, special, eps); });
}
extern "C" void run_derivative(unsigned blocks, unsigned threads, unsigned bytes, const real* Q, const real* sigma, const real* V,
                               const real* E, real* out, int64 batch, int64 matrix, int64 row, int64 column, double eps) {
    launch(blocks, threads, bytes, [=] { derivative(Q, sigma, V, E, out, batch, matrix, row, column, eps); });
}
#elif defined(OF_polar)
extern "C" void run_derivative(unsigned blocks, unsigned threads, unsigned bytes, const real* Q, const real* sigma, const real* V,
                               const real* E, real* out, int n, double eps) {
    launch(blocks, threads, bytes, [=] { derivative(Q, sigma, V, E, out, n, eps); });
}
extern "C" void run_turn(unsigned blocks, unsigned threads, unsigned bytes, real* Q, real* sigma, const real* V, int n) {
    launch(blocks, threads, bytes, [=] { turn(Q, sigma, V, n); });
}
#elif defined(OF_clouds)
extern "C" void run_align(unsigned blocks, unsigned threads, unsigned bytes, const given* x, const given* y, const given* w, given* R,
                          given* t, given* s, Kept* kept, counter* nonfinite, counter* not_unique, int64 pairs, int64 points,
                          int64 x0, int64 x1, int64 x2, int64 y0, int64 y1, int64 y2, int64 w0, int64 w1, double rounding,
                          double computed, double eps) {
    launch(blocks, threads, bytes, [=] {
        align(x, y, w, R, t, s, kept, nonfinite, not_unique, pairs, points, x0, x1, x2, y0, y1, y2, w0, w1, rounding, computed, eps);
    });
}
extern "C" void run_spread(unsigned blocks, unsigned threads, unsigned bytes, const given* x, const given* y, const given* w,
                           const Kept* kept, const given* gR, const given* gt, const given* gs, given* dx, given* dy, given* dw,
                           int64 pairs, int64 points, int64 x0, int64 x1, int64 x2, int64 y0, int64 y1, int64 y2, int64 w0,
                           int64 w1, double eps) {
    launch(blocks, threads, bytes, [=] {
        spread(x, y, w, kept, gR, gt, gs, dx, dy, dw, pairs, points, x0, x1, x2, y0, y1, y2, w0, w1, eps);
    });
}
#endif

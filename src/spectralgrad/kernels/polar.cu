// The derivative of the polar factor Q of square matrices in a direction E, one matrix in shared memory:
//
//     L Z V^T,   L = Q V,   Y = L^T (E V),   Z_ij = (Y_ij - Y_ji) / (s_i + s_j), and 0 where the sum is 0 to rounding.
//
// linalg/polar.py (`BySVD`) is the twin and derives it; there W = V Z V^T. It is taken at scale 1 and scaled back last.
//
// Compile-time: REAL (float or double), LARGEST, N (n rounded up to a multiple of TILE), TILE, THREADS.

#include "products.cuh"
#include "range.cuh"

// Q, V, E and out are (n, n) for each matrix, sigma is (n,), the largest first; `eps`: what rounding is relative to.
extern "C" __global__ void __launch_bounds__(THREADS)
derivative(const real* __restrict__ Q, const real* __restrict__ sigma, const real* __restrict__ V, const real* __restrict__ E,
           real* __restrict__ out, int n, double eps) {
    SHARED(shared);
    real* A = reinterpret_cast<real*>(shared);  // V, then L^T
    real* Vt = A + N * STRIDE;
    real* C = Vt + N * STRIDE;  // Q^T, then L
    real* X = C + N * STRIDE;   // E^T, then all that comes of it
    real* s = X + N * STRIDE;
    int* exponent = reinterpret_cast<int*>(s + N);
    int* exponent_of_values = exponent + 1;
    const int64 matrix = blockIdx.x, entries = (int64)n * n;
    Q += matrix * entries;
    V += matrix * entries;
    E += matrix * entries;
    sigma += matrix * n;
    if (threadIdx.x == 0) *exponent = *exponent_of_values = NO_EXPONENT;
    __syncthreads();
    bool broken = raise(exponent_of_values, sigma, n, 0, THREADS);
    broken = raise(exponent, E, n * n, 0, THREADS) || broken;
    broken = __syncthreads_or(broken);
    const int t = *exponent == NO_EXPONENT ? 0 : *exponent, k = *exponent_of_values == NO_EXPONENT ? 0 : *exponent_of_values;
    const PowerOfTwo down(-t), to_1(-k), back(t - k);
    for (int m = threadIdx.x; m < N * N; m += THREADS) {
        const int i = m / N, j = m % N;
        const real v = inside(V, n, i, j);
        A[i * STRIDE + j] = v;
        Vt[j * STRIDE + i] = v;
        C[j * STRIDE + i] = inside(Q, n, i, j);
        X[j * STRIDE + i] = inside(E, n, i, j) * down;
    }
    for (int i = threadIdx.x; i < n; i += THREADS) s[i] = sigma[i] * to_1;
    __syncthreads();
    const real rounding = real(n * eps) * s[0];
    real L[TILE][TILE], acc[TILE][TILE];
    const auto keep = [&](int i, int j, real x) { X[i * STRIDE + j] = x; };
    product(L, n, C, A, nullptr);    // Q V
    product(acc, n, X, A, nullptr);  // E V
    __syncthreads();
    each(acc, keep);
    each(L, [&](int i, int j, real x) {
        C[i * STRIDE + j] = x;
        A[j * STRIDE + i] = x;
    });
    __syncthreads();
    product(acc, n, C, X, nullptr);  // Y = L^T (E V)
    __syncthreads();
    each(acc, keep);
    __syncthreads();
    change(acc, [&](int i, int j, real y) {
        if (i >= n || j >= n || i == j) return real(0);
        const real sum = s[i] + s[j];
        return sum > 2 * rounding ? (y - X[j * STRIDE + i]) / sum : real(0);
    });
    __syncthreads();
    each(acc, keep);
    __syncthreads();
    product(acc, n, X, Vt, nullptr);  // Z^T V^T = -Z V^T
    __syncthreads();
    each(acc, keep);
    __syncthreads();
    product(acc, n, A, X, nullptr);  // -L Z V^T
    each(acc, [&](int i, int j, real x) {
        if (i < n && j < n) out[(matrix * n + i) * n + j] = broken ? sqrt(real(-1)) : bounded(-x * back);
    });
}

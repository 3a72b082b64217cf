// The gradient of a matrix from those of its eigenvalues and eigenvectors, one matrix in shared memory:
//
//     V (sym(K * X) + diag(gw)) V^T,   X = V^T gV,   K given.
//
// The skew part of X at a close pair is taken for zero where it is no more than rounding. linalg/eigh.py (`pullback`),
// linalg/rules/base.py (`seen`) and linalg/decomposition.py (`_pull_scaled`) are the twins.
//
// Compile-time: REAL (float or double), EPS, LARGEST, N (n rounded up to a multiple of TILE), TILE, CLOSE (|K| times the largest
// eigenvalue from which a pair is close), NOISE (times EPS times the lengths of two columns of gV: the rounding of X).

#include "products.cuh"
#include "range.cuh"

// w and K belong to the eigenvalues times 2^-k, k = exponents[matrix], or 0 where that is null. gw may be null: zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
pullback(const real* __restrict__ V, const real* __restrict__ w, const real* __restrict__ exponents, const real* __restrict__ K,
         const real* __restrict__ gw, const real* __restrict__ gV, real* __restrict__ out, int n) {
    SHARED(shared);
    real* U = reinterpret_cast<real*>(shared);
    real* Ut = U + N * STRIDE;
    real* X = Ut + N * STRIDE;
    real* noise = X + N * STRIDE;
    int* exponent = reinterpret_cast<int*>(noise + N);
    const int64 matrix = blockIdx.x, entries = (int64)n * n;
    V += matrix * entries;
    K += matrix * entries;
    gV += matrix * entries;
    w += matrix * n;
    if (gw) gw += matrix * n;
    const int k = exponents ? int(exponents[matrix]) : 0;
    if (threadIdx.x == 0) *exponent = NO_EXPONENT;
    __syncthreads();
    bool broken = raise(exponent, gV, n * n, 0, THREADS);
    if (gw) broken = raise(exponent, gw, n, k, THREADS) || broken;
    broken = __syncthreads_or(broken);
    const int t = *exponent == NO_EXPONENT ? 0 : *exponent;
    const PowerOfTwo down(-t), down_values(k - t), back(t - k);

    for (int m = threadIdx.x; m < N * N; m += THREADS) {
        const int i = m / N, j = m % N;
        const real x = inside(V, n, i, j);
        U[i * STRIDE + j] = x;
        Ut[j * STRIDE + i] = x;
        X[i * STRIDE + j] = inside(gV, n, i, j) * down;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < N; j += THREADS) {
        real sum = 0;
        for (int i = 0; i < n; ++i) sum += X[i * STRIDE + j] * X[i * STRIDE + j];
        noise[j] = real(NOISE) * real(EPS) * sqrt(sum);
    }
    real acc[TILE][TILE];
    const auto keep = [&](int i, int j, real x) { X[i * STRIDE + j] = x; };
    product(acc, n, U, X, nullptr);  // V^T gV
    __syncthreads();
    each(acc, keep);
    __syncthreads();
    const real size = fmax(fabs(w[0]), fabs(w[n - 1]));  // eigenvalues ascend
    const auto weighted = [&](int i, int j, real x, real skew) {
        const real f = K[(int64)i * n + j];
        const bool rounding = fabs(f) * size > real(CLOSE) && fabs(skew) <= noise[i] + noise[j];
        return f * (rounding ? x - skew : x);
    };
    change(acc, [&](int i, int j, real x) {
        if (i >= n || j >= n) return real(0);
        const real other = X[j * STRIDE + i], skew = (x - other) / 2;
        const real inner = real(0.5) * (weighted(i, j, x, skew) + weighted(j, i, other, -skew));
        return gw && i == j ? inner + gw[i] * down_values : inner;
    });
    __syncthreads();
    each(acc, keep);
    __syncthreads();
    product(acc, n, X, Ut, nullptr);  // inner V^T, inner being symmetric
    __syncthreads();
    each(acc, keep);
    __syncthreads();
    product(acc, n, Ut, X, nullptr);  // V (inner V^T)
    each(acc, [&](int i, int j, real x) {
        if (i < n && j < n) out[(matrix * n + i) * n + j] = broken ? sqrt(real(-1)) : bounded(x * back) + (x - x);
    });
}

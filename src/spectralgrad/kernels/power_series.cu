// The gradient of NIPS19's power iterations, summed in closed form in the eigenbasis; one matrix in shared memory.
//
// The twin, linalg/power/iteration.py, walks from the smallest eigenvalue to the largest. For eigenvector i it goes back
// through the deflation and then takes `steps` iterations u = P g / r, gM += u v^T, g <- M_i u. All its matrices are rebuilt
// from the eigenpairs, so in their basis, with w >= 0 ascending, M_i = diag(w_0, ..., w_i, 0, ...) and v = e_i. Let
// A = V^T gV, X = V^T gM V, c_i = 1 / w_i, or 0 where w_i is void, and q = w_a c_b for a pair a < b of indices.
//
// * When its turn comes, column i of X is empty, and row i holds X_ia = c_a A_ia from the one step that eigenvector a < i
//   takes along a direction which its M_a does not know: M_a e_i = 0, so the second step has no such part.
// * Deflation, two-sided: g_a = A_ai - w_a X_ia, and row i of X is cleared. As printed: g_a = A_ai - w_i X_ia, and it stays.
// * The iterations: X_ai = c_i S g_a with S = 1 + q + ... + q^(steps - 1), the power series of one direction.
//
// So with S' the sum without its last term, and l_a = w_a c_a = 1 or, where void, 0, the pair a < b has
//
//     two-sided   X_ab + X_ba = c_b S (A_ab - l_a A_ba)
//     printed     X_ab + X_ba = c_b (S A_ab - l_a S' A_ba)        since c_a (1 - S) = -l_a c_b S'
//                             = c_a A_ba                          where b is void
//
// gM = V sym(X) V^T, with gw on the diagonal. That equals the loop to the rounding of the deflated matrices, which it lacks.
//
// Compile-time: EPS, TINY (the smallest normal number), TWO_SIDED (1 or 0), and those of products.cuh.

#include "products.cuh"

struct Series { real all, but_last; };

__device__ __forceinline__ Series series(real q, int steps) {
    Series sum{0, 0};
    for (int k = 0; k < steps; ++k) sum = {1 + q * sum.all, sum.all};
    return sum;
}

// (X_ab + X_ba) / 2 for a < b, from A_ab and A_ba.
__device__ __forceinline__ real pair(real ab, real ba, real w_a, real c_a, real c_b, int steps) {
    const real half = real(0.5);
    if (c_b == 0) return TWO_SIDED ? real(0) : half * c_a * ba;
    const Series sum = series(w_a * c_b, steps);
    const real alive = c_a == 0 ? real(0) : real(1);
    return half * c_b * (sum.all * ab - alive * (TWO_SIDED ? sum.all : sum.but_last) * ba);
}

// out (n, n) from the eigenpairs, ascending, which of them were kept, and the cotangents; null for one that is zero.
extern "C" __global__ void __launch_bounds__(THREADS)
pullback(const real* __restrict__ V, const real* __restrict__ w, const bool* __restrict__ kept, const real* __restrict__ gw,
         const real* __restrict__ gV, real* __restrict__ out, int n, int steps) {
    SHARED(shared);
    real* U = reinterpret_cast<real*>(shared);
    real* Ut = U + N * STRIDE;
    real* X = Ut + N * STRIDE;
    real* l = X + N * STRIDE;  // w >= 0
    real* inverse = l + N;     // c
    const int64 matrix = blockIdx.x;
    V += matrix * n * n;
    w += matrix * n;
    kept += matrix * n;
    for (int k = threadIdx.x; k < N * N; k += THREADS) {
        const int i = k / N, j = k % N;
        const real x = inside(V, n, i, j);
        U[i * STRIDE + j] = x;
        Ut[j * STRIDE + i] = x;
        X[i * STRIDE + j] = gV && j < n && kept[j] ? inside(gV + matrix * n * n, n, i, j) : real(0);
    }
    const real void_below = fmax(n * real(EPS) * w[n - 1], real(TINY));
    for (int i = threadIdx.x; i < n; i += THREADS) {
        l[i] = w[i] < 0 ? real(0) : w[i];  // NaN stays
        inverse[i] = l[i] <= void_below ? real(0) : 1 / l[i];
    }
    __syncthreads();
    real acc[TILE][TILE];
    product(acc, n, U, X, nullptr);  // A = V^T gV
    __syncthreads();
    each(acc, [&](int i, int j, real x) { X[i * STRIDE + j] = x; });
    __syncthreads();
    change(acc, [&](int i, int j, real) {
        const int a = min(i, j), b = max(i, j);
        if (b >= n) return real(0);
        if (i == j) return gw && kept[i] ? gw[matrix * n + i] : real(0);
        return pair(X[a * STRIDE + b], X[b * STRIDE + a], l[a], inverse[a], inverse[b], steps);
    });
    __syncthreads();
    each(acc, [&](int i, int j, real x) { X[i * STRIDE + j] = x; });
    __syncthreads();
    product(acc, n, X, Ut, nullptr);  // sym(X) V^T
    __syncthreads();
    each(acc, [&](int i, int j, real x) { X[i * STRIDE + j] = x; });
    __syncthreads();
    product(acc, n, Ut, X, nullptr);  // V (sym(X) V^T)
    each(acc, [&](int i, int j, real x) {
        if (i < n && j < n) out[(matrix * n + i) * n + j] = x;
    });
}

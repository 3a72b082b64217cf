// Singular triplets and polar factors of matrices with at most four rows and columns: one thread a matrix; see small_svd.cuh.
//
// Compile-time: THREADS, and what small_svd.cuh asks for.

#include "small_svd.cuh"

// This thread's matrix, or -1.
__device__ __forceinline__ int64 own(int64 batch) {
    const int64 matrix = (int64)blockIdx.x * THREADS + threadIdx.x;
    return matrix < batch ? matrix : -1;
}

// left (M, N) and right (N, N) at strides inside a matrix, S (N,) descending; `exponents` as in svd.cu.
extern "C" __global__ void __launch_bounds__(THREADS)
svd(const real* __restrict__ A, const int* __restrict__ exponents, real* __restrict__ left, real* __restrict__ S, real* __restrict__ right, unsigned long long* nonfinite,
    int64 batch, int64 matrix_stride, int64 row_stride, int64 column_stride, int left_row, int left_column, int right_row, int right_column) {
    const int64 matrix = own(batch);
    if (matrix < 0) return;
    const Triplets X = decompose(A + matrix * matrix_stride, {matrix_stride, row_stride, column_stride});
    if (nonfinite && X.broken) atomicAdd(nonfinite, 1ULL);
    const int back = X.exponent + (exponents ? exponents[matrix] : 0);
    const real nan = sqrt(real(-1));
    left += matrix * (M * N);
    right += matrix * (N * N);
    #pragma unroll
    for (int k = 0; k < N; ++k) {
        S[matrix * N + k] = X.broken ? nan : fmin(ldexp(X.S[k], back), real(LARGEST));
        #pragma unroll
        for (int i = 0; i < M; ++i) left[i * left_row + k * left_column] = X.broken ? nan : X.G[k][i];
        #pragma unroll
        for (int i = 0; i < N; ++i) right[i * right_row + k * right_column] = X.broken ? nan : X.W[k][i];
    }
}

// Q (M, N), sigma (N,), V (N, N) with V[j][k] = J_jk, all contiguous. `not_unique`, unless it is null, counts matrices whose smallest
// divisor of the derivative is 0 to rounding.
extern "C" __global__ void __launch_bounds__(THREADS)
polar(const real* __restrict__ A, real* __restrict__ Q, real* __restrict__ sigma, real* __restrict__ V, unsigned long long* nonfinite,
      unsigned long long* not_unique, int64 batch, int64 matrix_stride, int64 row_stride, int64 column_stride, int special, double eps) {
    const int64 matrix = own(batch);
    if (matrix < 0) return;
    Triplets X = decompose(A + matrix * matrix_stride, {matrix_stride, row_stride, column_stride});
    if (nonfinite && X.broken) atomicAdd(nonfinite, 1ULL);
    real R[M][N];
    nearest(X, special, R);
    if (not_unique && !unique(X, special, eps)) atomicAdd(not_unique, 1ULL);
    const real nan = sqrt(real(-1));
    #pragma unroll
    for (int k = 0; k < N; ++k) {
        sigma[matrix * N + k] = X.broken ? nan : bounded(ldexp(X.S[k], X.exponent));
        #pragma unroll
        for (int i = 0; i < M; ++i) Q[matrix * (M * N) + i * N + k] = X.broken ? nan : R[i][k];
        #pragma unroll
        for (int i = 0; i < N; ++i) V[matrix * (N * N) + i * N + k] = X.broken ? nan : X.W[k][i];
    }
}

template <int ROWS> __device__ __forceinline__ void read(real (&x)[ROWS][N], const real* from) {
    #pragma unroll
    for (int i = 0; i < ROWS; ++i)
        #pragma unroll
        for (int j = 0; j < N; ++j) x[i][j] = from[i * N + j];
}

// out (M, N) contiguous, the derivative of Q in the direction E at strides.
extern "C" __global__ void __launch_bounds__(THREADS)
derivative(const real* __restrict__ Q, const real* __restrict__ sigma, const real* __restrict__ V, const real* __restrict__ E,
           real* __restrict__ out, int64 batch, int64 matrix_stride, int64 row_stride, int64 column_stride, double eps) {
    const int64 matrix = own(batch);
    if (matrix < 0) return;
    real q[M][N], v[N][N], e[M][N], s[N], found[M][N];
    read(q, Q + matrix * (M * N));
    read(v, V + matrix * (N * N));
    E += matrix * matrix_stride;
    #pragma unroll
    for (int i = 0; i < M; ++i)
        #pragma unroll
        for (int j = 0; j < N; ++j) e[i][j] = E[i * row_stride + j * column_stride];
    #pragma unroll
    for (int k = 0; k < N; ++k) s[k] = sigma[matrix * N + k];
    derive(q, v, s, e, eps, found);
    #pragma unroll
    for (int i = 0; i < M; ++i)
        #pragma unroll
        for (int j = 0; j < N; ++j) out[matrix * (M * N) + i * N + j] = found[i][j];
}

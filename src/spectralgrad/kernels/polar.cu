// The derivative of the polar factor Q of square matrices in a direction E, one matrix in shared memory:
//
//     L Z V^T,   L = Q V,   Y = L^T (E V),   Z_ij = (Y_ij - Y_ji) / (s_i + s_j), and 0 where the sum is 0 to rounding.
//
// linalg/polar.py (`BySVD`) is the twin and derives it; there W = V Z V^T. It is taken at scale 1 and scaled back last.
//
// And the step from the nearest orthogonal matrix to the nearest rotation.
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
    real acc[TILE][TILE];  // one product at a time: in float64 two do not fit into registers
    const auto keep = [&](int i, int j, real x) { X[i * STRIDE + j] = x; };
    product(acc, n, X, A, nullptr);  // E V
    __syncthreads();
    each(acc, keep);
    product(acc, n, C, A, nullptr);  // L = Q V
    __syncthreads();
    each(acc, [&](int i, int j, real x) {
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

// Whether the determinant of the orthogonal X (n, n), rows STRIDE apart in shared memory, is negative: by elimination, which
// overwrites it. A warp looks for the largest entry of a column, all threads eliminate. `pivot` is a number in shared memory.
__device__ __forceinline__ bool is_mirror(real* X, int n, int* pivot) {
    bool negative = false;
    for (int k = 0; k < n; ++k) {
        if (threadIdx.x < 32) {
            real largest = -1;
            int at = k;
            for (int i = k + threadIdx.x; i < n; i += 32)
                if (fabs(X[i * STRIDE + k]) > largest) {
                    largest = fabs(X[i * STRIDE + k]);
                    at = i;
                }
            #pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                const real other = __shfl_xor_sync(0xffffffffu, largest, step);
                const int place = __shfl_xor_sync(0xffffffffu, at, step);
                if (other > largest || (other == largest && place < at)) {
                    largest = other;
                    at = place;
                }
            }
            if (threadIdx.x == 0) *pivot = at;
        }
        __syncthreads();
        const int p = *pivot;
        const real top = X[p * STRIDE + k];
        negative = negative != (top < 0) != (p != k);
        // Row p stands for row k from here on: what lay in k moves there as it is eliminated.
        const int rows = n - k - 1;
        for (int i = k + 1 + threadIdx.x; i < n; i += THREADS) X[i * STRIDE + N] = X[(i == p ? k : i) * STRIDE + k] / top;
        __syncthreads();
        for (int m = threadIdx.x; m < rows * rows; m += THREADS) {
            const int i = k + 1 + m / rows, j = k + 1 + m % rows;
            if (i != p) X[i * STRIDE + j] -= X[i * STRIDE + N] * X[p * STRIDE + j];
        }
        __syncthreads();
        if (p != k)
            for (int j = k + 1 + threadIdx.x; j < n; j += THREADS)
                X[p * STRIDE + j] = X[k * STRIDE + j] - X[p * STRIDE + N] * X[p * STRIDE + j];
        __syncthreads();
    }
    return negative;
}

// Q = U V^T becomes the nearest rotation, in place: where its determinant is negative, the last left vector Q v changes its sign, and
// so does the last of sigma.
extern "C" __global__ void __launch_bounds__(THREADS)
turn(real* __restrict__ Q, real* __restrict__ sigma, const real* __restrict__ V, int n) {
    SHARED(shared);
    real* X = reinterpret_cast<real*>(shared);
    real* u = X + N * STRIDE;  // Q v
    int* pivot = reinterpret_cast<int*>(u + N);
    const int64 matrix = blockIdx.x, entries = (int64)n * n;
    Q += matrix * entries;
    V += matrix * entries;
    for (int m = threadIdx.x; m < n * n; m += THREADS) X[m / n * STRIDE + m % n] = Q[m];
    __syncthreads();
    if (!is_mirror(X, n, pivot)) return;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        real sum = 0;
        for (int j = 0; j < n; ++j) sum += Q[i * n + j] * V[j * n + n - 1];
        u[i] = sum;
    }
    __syncthreads();
    for (int m = threadIdx.x; m < n * n; m += THREADS) Q[m] -= 2 * u[m / n] * V[m % n * n + n - 1];
    if (threadIdx.x == 0) sigma[matrix * n + n - 1] *= -1;
}

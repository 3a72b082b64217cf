// Products of matrices in shared memory, for the kernels of one block a matrix: spectral.cu, eigenpairs.cu,
// power_series.cu.
//
// All are sums over k of left[k][i] right[k][j], so that a thread reads its entries of a row 16 bytes at a time. It owns
// TILE x TILE entries of the result: TILE = 4 neighbours, or for TILE = 8 four neighbours in each half of the row.
//
// Compile-time: REAL (float or double), N (n rounded up to a multiple of TILE), TILE, THREADS (of a block: at least those that own
// entries; more of them share what comes from memory).

#include "memory.cuh"

constexpr int SIDE = N / TILE;  // threads along a row
constexpr int OWNERS = SIDE * SIDE;
static_assert(THREADS >= OWNERS, "an owner for every entry");
constexpr int STRIDE = N + 4;  // keeps rows aligned and spreads columns over banks

// Where entry v of part r lies in a row of N, for thread t of SIDE.
__device__ __forceinline__ int at(int t, int v) { return v / 4 * (N / 2) + 4 * t + v % 4; }

__device__ __forceinline__ void read(const real* row, int t, real (&x)[TILE]) {
    #pragma unroll
    for (int part = 0; part < TILE / 4; ++part) {
        const Four four = *reinterpret_cast<const Four*>(row + at(t, 4 * part));
        #pragma unroll
        for (int v = 0; v < 4; ++v) x[4 * part + v] = four.x[v];
    }
}

// acc = sum over k < n of left[k][i] scale[k] right[k][j], for the entries (i, j) that this thread owns; no scale: 1.
__device__ __forceinline__ void product(real (&acc)[TILE][TILE], int n, const real* left, const real* right, const real* scale) {
    if (threadIdx.x >= OWNERS) return;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    #pragma unroll
    for (int r = 0; r < TILE; ++r)
        #pragma unroll
        for (int c = 0; c < TILE; ++c) acc[r][c] = 0;
    #pragma unroll 4
    for (int k = 0; k < n; ++k) {
        real a[TILE], b[TILE];
        read(left + k * STRIDE, y, a);
        read(right + k * STRIDE, x, b);
        #pragma unroll
        for (int r = 0; r < TILE; ++r) {
            const real f = scale ? a[r] * scale[k] : a[r];
            #pragma unroll
            for (int c = 0; c < TILE; ++c) acc[r][c] += f * b[c];
        }
    }
}

template <class Put>
__device__ __forceinline__ void each(const real (&acc)[TILE][TILE], Put put) {
    if (threadIdx.x >= OWNERS) return;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    #pragma unroll
    for (int r = 0; r < TILE; ++r)
        #pragma unroll
        for (int c = 0; c < TILE; ++c) put(at(y, r), at(x, c), acc[r][c]);
}

template <class Change>
__device__ __forceinline__ void change(real (&acc)[TILE][TILE], Change to) {
    if (threadIdx.x >= OWNERS) return;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    #pragma unroll
    for (int r = 0; r < TILE; ++r)
        #pragma unroll
        for (int c = 0; c < TILE; ++c) acc[r][c] = to(at(y, r), at(x, c), acc[r][c]);
}

__device__ __forceinline__ real inside(const real* X, int n, int i, int j) { return i < n && j < n ? X[i * n + j] : real(0); }

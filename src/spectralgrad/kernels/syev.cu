// Around cuSOLVER's eigensolver: Hermitian matrices at scale 1 and turned by a reflection for it, and its results turned back.
//
// The reflection is Q = I - beta r r^T, with numbers r that no matrix knows. It leaves no small entry and no block of zeros:
//
//     Q H Q = H - r q^H - q r^H    with    p = H r,   q = beta p - beta^2 (r^T p) / 2 r.
//
// Where H is deficient, nothing but rounding is left after some steps of the solver, and that may be exactly zero. So every
// entry gets noise of a part of its rounding, a matrix of zeros excepted.
//
// Compile-time: REAL (float or double), EPS (its rounding), PARTS (1: real, 2: complex numbers, real part first), LARGEST (the
// largest number), THREADS (of a block).

#include "memory.cuh"

struct Number { real x[PARTS]; };

// states[b] of matrix b: 2^-k with its exponent k, as two factors, since as one it may be out of range, and 0 for zeros; and
// whether it is broken.
struct State { real first, second; int exponent, broken; };

__device__ __forceinline__ unsigned hash(unsigned i) {
    const unsigned x = 2654435769u * (i + 1);
    return (x ^ x >> 15) * 2246822519u;
}

// Between -1/8 and 1/8 of the rounding of 1, the same for (i, j) and (j, i).
__device__ __forceinline__ real noise(int i, int j) {
    const unsigned x = hash(hash(min(i, j)) + max(i, j));
    return (real(x >> 8) / real(1 << 23) - 1) * real(EPS) / 8;
}

// r_i: between 1/2 and 3/2, and of either sign. syev.py knows its length.
__device__ __forceinline__ real r(int i) {
    const unsigned x = hash(i);
    const real size = real(0.5) + real(x >> 16) / real(65536);
    return x & 1 ? -size : size;
}

__device__ __forceinline__ real over_warp(real x) {
    #pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

// The sum of x_i r_i over a warp, for a row x of n numbers.
__device__ __forceinline__ Number along_r(const Number* x, int n, State scale) {
    Number sum = {};
    for (int i = threadIdx.x % 32; i < n; i += 32) {
        const real own = r(i);
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) sum.x[part] += x[i].x[part] * scale.first * scale.second * own;
    }
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) sum.x[part] = over_warp(sum.x[part]);
    return sum;
}

// One block a matrix: its state, and q (n) for its Hermitian part at scale 1. q is zero where a matrix is broken.
extern "C" __global__ void __launch_bounds__(THREADS)
look(const Number* __restrict__ M, State* __restrict__ states, Number* q, unsigned long long* nonfinite, int n, real beta) {
    const int64 numbers = (int64)n * n * PARTS;
    M += (int64)blockIdx.x * n * n;
    q += (int64)blockIdx.x * n;
    const real* entries = reinterpret_cast<const real*>(M);
    real largest = 0;
    bool broken = false;
    #pragma unroll 8
    for (int64 i = threadIdx.x; i < numbers; i += THREADS) {
        const real y = fabs(entries[i]);
        broken = broken || !(y <= real(LARGEST));
        largest = fmax(largest, y);
    }
    broken = __syncthreads_or(broken);
    // The exponent bit by bit, from 2^11 down: as many votes as it has bits. Matrices are large here, and votes are cheap.
    int own = -(1 << 12), exponent = -(1 << 12);
    if (largest > 0 && !broken) frexp(largest, &own);
    for (int step = 1 << 12; step > 0; step /= 2)
        if (__syncthreads_or(own >= exponent + step)) exponent += step;
    const bool zeros = exponent == -(1 << 12);
    if (zeros) exponent = 0;
    const State state = {zeros ? real(0) : ldexp(real(1), -(exponent / 2)), ldexp(real(1), exponent / 2 - exponent), exponent, broken};
    if (threadIdx.x == 0) {
        if (broken) atomicAdd(nonfinite, 1ULL);
        states[blockIdx.x] = state;
    }
    // p = (M + M^H) r / 2: half by rows, a warp each, then half by columns, a thread each.
    for (int i = threadIdx.x / 32; i < n; i += THREADS / 32) {
        Number sum = {};
        if (!broken) sum = along_r(M + (int64)i * n, n, state);
        if (threadIdx.x % 32 == 0) q[i] = sum;
    }
    __syncthreads();
    real length = 0;  // this thread's part of r^T p, which is real
    for (int j = threadIdx.x; j < n; j += THREADS) {
        Number sum = q[j];
        #pragma unroll 8
        for (int i = 0; i < (broken ? 0 : n); ++i) {
            const Number entry = M[(int64)i * n + j];
            const real factor = r(i);
            #pragma unroll
            for (int part = 0; part < PARTS; ++part)
                sum.x[part] += (part ? -factor : factor) * (entry.x[part] * state.first * state.second);
        }
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) q[j].x[part] = real(0.5) * sum.x[part];
        length += r(j) * real(0.5) * sum.x[0];
    }
    SHARED(shared);
    real* lengths = reinterpret_cast<real*>(shared);  // one of each warp
    length = over_warp(length);
    if (threadIdx.x % 32 == 0) lengths[threadIdx.x / 32] = length;
    __syncthreads();
    length = 0;
    for (int i = 0; i < THREADS / 32; ++i) length += lengths[i];
    for (int j = threadIdx.x; j < n; j += THREADS) {
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) q[j].x[part] *= beta;
        q[j].x[0] -= real(0.5) * beta * beta * length * r(j);
    }
}

// H is Q times the Hermitian part of M 2^-k times Q (n, n); zeros where it is broken.
extern "C" __global__ void __launch_bounds__(THREADS)
prepare(const Number* __restrict__ M, const State* __restrict__ states, const Number* __restrict__ q, Number* __restrict__ H, int n,
        int64 count) {
    const int64 place = (int64)blockIdx.x * THREADS + threadIdx.x;
    if (place >= count) return;
    const int64 size = (int64)n * n, matrix = place / size, at = place % size, i = at / n, j = at % n;
    const State state = states[matrix];
    const Number a = M[place], b = M[matrix * size + j * n + i], qi = q[matrix * n + i], qj = q[matrix * n + j];
    const real ri = r(i), rj = r(j);
    Number h;
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const real sign = part ? -1 : 1;
        const real x = a.x[part] * state.first * state.second, y = b.x[part] * state.first * state.second;
        const real turned = (real(0.5) * x + sign * real(0.5) * y) - (sign * ri * qj.x[part] + qi.x[part] * rj);
        h.x[part] = state.broken || (part && i == j) ? real(0) : turned;
    }
    if (state.first > 0) h.x[0] += noise(i, j);
    H[place] = h;
}

// Eigenvalues (n,) times 2^k, cut to the largest number, and Q times the vectors, which are the rows of V (n, n) or their
// conjugates. NaN where a matrix was broken or failed.
extern "C" __global__ void __launch_bounds__(THREADS)
finish(const State* __restrict__ states, const int* __restrict__ failed, real* __restrict__ w, Number* V,
       unsigned long long* failures, int n, real beta) {
    const State state = states[blockIdx.x];
    const bool unusable = state.broken || failed[blockIdx.x];
    const real nan = sqrt(real(-1));
    if (threadIdx.x == 0 && failed[blockIdx.x]) atomicAdd(failures, 1ULL);
    w += (int64)blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += THREADS)
        w[i] = unusable ? nan : fmin(fmax(ldexp(w[i], state.exponent), -real(LARGEST)), real(LARGEST));
    V += (int64)blockIdx.x * n * n;
    for (int k = threadIdx.x / 32; k < n; k += THREADS / 32) {
        Number* row = V + (int64)k * n;
        const Number sum = along_r(row, n, State{1, 1, 0, 0});
        for (int i = threadIdx.x % 32; i < n; i += 32) {
            const real own = beta * r(i);
            #pragma unroll
            for (int part = 0; part < PARTS; ++part) row[i].x[part] = unusable ? nan : row[i].x[part] - own * sum.x[part];
        }
    }
}

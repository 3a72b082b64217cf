// Around cuSOLVER's eigensolver: Hermitian matrices at scale 1 for it, and its results at their own scale.
//
// Compile-time: REAL (float or double), PARTS (1: real, 2: complex numbers, real part first), LARGEST (the largest number),
// NOTHING (what is below this at scale 1 becomes 0), THREADS (of a block).

typedef long long int64;
typedef REAL real;
struct Number { real x[PARTS]; };

// states[b] of matrix b: 2^-k with its exponent k, as two factors, since as one it may be out of range; and whether it is broken.
struct State { real first, second; int exponent, broken; };

// One block a matrix of `numbers` real numbers.
extern "C" __global__ void __launch_bounds__(THREADS)
look(const real* __restrict__ M, State* __restrict__ states, unsigned long long* nonfinite, int64 numbers) {
    M += blockIdx.x * numbers;
    real largest = 0;
    bool broken = false;
    #pragma unroll 8
    for (int64 i = threadIdx.x; i < numbers; i += THREADS) {
        const real y = fabs(M[i]);
        broken = broken || !(y <= real(LARGEST));
        largest = fmax(largest, y);
    }
    broken = __syncthreads_or(broken);
    // The exponent bit by bit, from 2^11 down: as many votes as it has bits. Matrices are large here, and votes are cheap.
    int own = -(1 << 12), exponent = -(1 << 12);
    if (largest > 0 && !broken) frexp(largest, &own);
    for (int step = 1 << 12; step > 0; step /= 2)
        if (__syncthreads_or(own >= exponent + step)) exponent += step;
    if (exponent == -(1 << 12)) exponent = 0;  // zeros
    if (threadIdx.x != 0) return;
    if (broken) atomicAdd(nonfinite, 1ULL);
    states[blockIdx.x] = {ldexp(real(1), -(exponent / 2)), ldexp(real(1), exponent / 2 - exponent), exponent, broken};
}

// H is the Hermitian part of M 2^-k (n, n); zeros where it is broken.
extern "C" __global__ void __launch_bounds__(THREADS)
prepare(const Number* __restrict__ M, const State* __restrict__ states, Number* __restrict__ H, int n, int64 count) {
    const int64 place = (int64)blockIdx.x * THREADS + threadIdx.x;
    if (place >= count) return;
    const int64 size = (int64)n * n, matrix = place / size, at = place % size, i = at / n, j = at % n;
    const State state = states[matrix];
    const Number a = M[place], b = M[matrix * size + j * n + i];
    Number h;
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const real x = a.x[part] * state.first * state.second, y = b.x[part] * state.first * state.second;
        const real z = real(0.5) * x + (part ? -real(0.5) : real(0.5)) * y;
        h.x[part] = state.broken || fabs(z) < real(NOTHING) ? real(0) : z;
    }
    H[place] = h;
}

// Eigenvalues (n,) times 2^k, cut to the largest number; NaN, the vectors V (n, n) too, where a matrix was broken or failed.
extern "C" __global__ void __launch_bounds__(THREADS)
finish(const State* __restrict__ states, const int* __restrict__ failed, real* __restrict__ w, Number* __restrict__ V,
       unsigned long long* failures, int n) {
    const State state = states[blockIdx.x];
    const bool unusable = state.broken || failed[blockIdx.x];
    const real nan = sqrt(real(-1));
    if (threadIdx.x == 0 && failed[blockIdx.x]) atomicAdd(failures, 1ULL);
    w += (int64)blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += THREADS)
        w[i] = unusable ? nan : fmin(fmax(ldexp(w[i], state.exponent), -real(LARGEST)), real(LARGEST));
    V += (int64)blockIdx.x * n * n;
    for (int64 i = threadIdx.x; unusable && i < (int64)n * n; i += THREADS)
        for (int part = 0; part < PARTS; ++part) V[i].x[part] = nan;
}

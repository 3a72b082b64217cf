// The gradient of a matrix from those of its eigenvalues and eigenvectors, one matrix in shared memory:
//
//     V (sym(K * X) + diag(gw)) V^T,   X = V^T gV,   K by a rule, or given.
//
// The skew part of X at a close pair is taken for zero where it is no more than rounding. linalg/eigh.py (`pullback`),
// linalg/rules (`coefficients`, `seen`) and linalg/decomposition.py (`_pull_scaled`) are the twins.
//
// Compile-time: REAL (float or double), EPS, LARGEST, N (n rounded up to a multiple of TILE), TILE, KIND (the rule), SCALE_FREE (1:
// K of c times the eigenvalues is K / c), CLOSE (|K| times the largest eigenvalue from which a pair is close), NOISE (times EPS
// times the lengths of two columns of gV: the rounding of X).

#include "products.cuh"
#include "range.cuh"

enum Rule { GIVEN, ANALYTIC, CLIP, EXACT, LORENTZIAN, TAYLOR };

// K for eigenvalues a and b, the first of which comes first if `upward`; `size` is that of the largest, `number` the rule's.
__device__ __forceinline__ real coefficient(real a, real b, bool upward, real size, int n, double number) {
    const real gap = b - a, order = gap > 0 || (gap == 0 && upward) ? real(1) : real(-1);
    switch (KIND) {
        case ANALYTIC: return gap == 0 ? order * real(LARGEST) * 2 : 1 / gap;
        case CLIP: return fabs(gap) <= real(1 / number) ? order * real(number) : 1 / gap;
        case EXACT: return fabs(gap) <= max(n, 16) * real(EPS) * size ? real(0) : bounded(1 / gap);
        case LORENTZIAN: {
            const real unit = size > 0 ? size : real(1), relative = gap / unit;
            return relative == 0 ? real(0) : bounded(relative / (relative * relative + real(number * number)) / unit);
        }
        default: {
            const real larger = fabs(a) >= fabs(b) ? a : b, ratio = fabs(a) >= fabs(b) ? b / a : a / b;
            if (fabs(larger) <= real(number + 1) / sqrt(real(LARGEST)) * size) return real(0);
            real sum = 1;
            for (int k = 0; k < int(number); ++k) sum = 1 + ratio * sum;
            return bounded(order * sum / fabs(larger));
        }
    }
}

// K is read for KIND GIVEN alone, and belongs to the eigenvalues at scale 1 if SCALE_FREE. gw may be null: zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
pullback(const real* __restrict__ V, const real* __restrict__ w, const real* __restrict__ K, const real* __restrict__ gw,
         const real* __restrict__ gV, real* __restrict__ out, int n, double number) {
    SHARED(shared);
    real* U = reinterpret_cast<real*>(shared);
    real* Ut = U + N * STRIDE;
    real* X = Ut + N * STRIDE;
    real* noise = X + N * STRIDE;
    real* l = noise + N;  // eigenvalues
    int* exponent = reinterpret_cast<int*>(l + N);
    int* exponent_of_values = exponent + 1;
    const int64 matrix = blockIdx.x, entries = (int64)n * n;
    V += matrix * entries;
    if (KIND == GIVEN) K += matrix * entries;
    gV += matrix * entries;
    w += matrix * n;
    if (gw) gw += matrix * n;
    if (threadIdx.x == 0) *exponent = *exponent_of_values = NO_EXPONENT;
    __syncthreads();
    bool broken = raise(exponent_of_values, w, n, 0, THREADS);
    broken = __syncthreads_or(broken);
    const int k = SCALE_FREE && *exponent_of_values != NO_EXPONENT ? *exponent_of_values : 0;
    broken = raise(exponent, gV, n * n, 0, THREADS) || broken;
    if (gw) broken = raise(exponent, gw, n, k, THREADS) || broken;
    broken = __syncthreads_or(broken);
    const int t = *exponent == NO_EXPONENT ? 0 : *exponent;
    const PowerOfTwo down(-t), down_values(k - t), back(t - k), to_1(-k);

    for (int m = threadIdx.x; m < N * N; m += THREADS) {
        const int i = m / N, j = m % N;
        const real x = inside(V, n, i, j);
        U[i * STRIDE + j] = x;
        Ut[j * STRIDE + i] = x;
        X[i * STRIDE + j] = inside(gV, n, i, j) * down;
    }
    for (int i = threadIdx.x; i < n; i += THREADS) l[i] = w[i] * to_1;
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
    const real size = fmax(fabs(l[0]), fabs(l[n - 1]));  // eigenvalues ascend
    const auto weighted = [&](int i, int j, real x, real skew) {
        const real f = KIND == GIVEN ? K[(int64)i * n + j] : i == j ? real(0) : coefficient(l[i], l[j], i < j, size, n, number);
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

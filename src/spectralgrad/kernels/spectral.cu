// f(M) = V diag(f(w)) V^T and its derivative V (F * (V^T sym(G) V)) V^T, one matrix in shared memory.
//
// F is the Loewner matrix of divided differences, written without cancellation; linalg/elementary.py has the formulas and is
// the twin of all this. Eigenvalues at the border of the domain are clamped as there.
//
// The derivative is taken at scale 1 and scaled back last, by powers of two, so that nothing overflows on the way: G always,
// eigenvalues outside ORDINARY. What overflows in the end becomes the largest number, in the value too.
//
// Compile-time: REAL (float or double), EPS, TINY (the smallest number), LARGEST, N (n rounded up to a multiple of TILE), TILE, KIND (the function), BORDER (what
// becomes of eigenvalues that are zero to rounding), FLOOR (1: eigenvalues below `floor` are replaced by it).

#include "products.cuh"
#include "range.cuh"

enum ScalarFunction { GIVEN, SQRT, INVERSE_SQRT, POWER, LOG, EXP };
enum Border { NOTHING, TO_ZERO, TO_ROUNDING, NOT_NEGATIVE };
constexpr int ZERO = 4;        // times EPS times the largest eigenvalue: as in linalg/scalars.py
constexpr int ORDINARY = sizeof(real) == 4 ? 20 : 200;  // |exponent| of eigenvalues whose powers are no trouble

struct Value { real at; bool clamped; };

__device__ __forceinline__ real zero_tolerance(const real* w, int n) {
    const real radius = fmax(-w[0], w[n - 1]), tolerance = ZERO * real(EPS) * radius;
    return BORDER == TO_ROUNDING ? fmax(tolerance, real(TINY)) : tolerance;
}

__device__ __forceinline__ Value clamp(real w, real tolerance, real floor) {
    if (FLOOR) return w < floor ? Value{floor, true} : Value{w, false};
    if (BORDER == TO_ZERO && w <= tolerance) return {real(0), true};
    if (BORDER == TO_ROUNDING && w <= tolerance) return {tolerance, true};
    if (BORDER == NOT_NEGATIVE && w < 0) return {real(0), false};
    return {w, false};
}

__device__ __forceinline__ real f(real c, real alpha) {
    switch (KIND) {
        case SQRT: return sqrt(c);
        case INVERSE_SQRT: return 1 / sqrt(c);
        case POWER: return bounded(pow(c, alpha));
        case LOG: return log(c);
        default: return bounded(exp(c));
    }
}

// log(a / b) for a >= b >= 0, right relative to itself; infinite at b = 0.
__device__ __forceinline__ real log_ratio(real a, real b) {
    const real ratio = b / a;
    return ratio > real(0.5) ? log1p((a - b) / b) : -log(ratio);
}

// An eigenvalue, as differences take it: inside the domain, with its square root where f has to do with that.
struct Entry { real at, root; bool clamped; };

__device__ __forceinline__ Entry entry(Value value) {
    return {value.at, KIND == SQRT || KIND == INVERSE_SQRT ? sqrt(value.at) : real(0), value.clamped};
}

__device__ __forceinline__ real difference(const Entry& x, const Entry& y, real alpha) {
    const real a = fmax(x.at, y.at), b = fmin(x.at, y.at), gap = a - b;
    switch (KIND) {
        case SQRT: {
            const real sum = x.root + y.root;
            return sum == 0 ? real(0) : 1 / sum;
        }
        case INVERSE_SQRT: {
            const real p = fmax(x.root, y.root), q = fmin(x.root, y.root);
            return -1 / (p * q * (p + q));
        }
        case POWER: {
            const real base = alpha > 0 ? a : b;
            if (alpha == 0) return real(0);
            if (!(base > 0)) return alpha == 1 ? real(1) : real(0);
            const real t = log_ratio(a, b), change = alpha > 0 ? -expm1(-alpha * t) : expm1(alpha * t);
            return pow(base, alpha - 1) * (gap == 0 ? alpha : change / (gap / base));
        }
        case LOG: return gap == 0 ? 1 / b : log_ratio(a, b) / gap;
        default: return exp(a) * (gap == 0 ? real(1) : -expm1(-gap) / gap);
    }
}

// What brings differences of f to size 1: eigenvalues times 2^-k, or less `shift`, give differences times 2^-power.
struct Scaling { int k; real shift; double power; };

__device__ __forceinline__ Scaling scaling(const real* w, int n, real alpha, real floor) {
    const real tolerance = zero_tolerance(w, n), low = clamp(w[0], tolerance, floor).at, high = clamp(w[n - 1], tolerance, floor).at;
    if (KIND == GIVEN) return {0, real(0), 0.0};
    if (KIND == EXP) return {0, high, double(high) * 1.4426950408889634};
    const double degree = KIND == SQRT ? 0.5 : KIND == INVERSE_SQRT ? -0.5 : KIND == POWER ? double(alpha) : 0.0;
    const real steepest = degree < 1 && low > 0 ? low : high;
    int k = 0;
    if (steepest > 0) frexp(steepest, &k);
    if (-ORDINARY <= k && k <= ORDINARY) k = 0;
    k += k & 1;  // even, for the exponents of square roots
    return {k, real(0), (degree - 1) * k};
}

// out = V diag(f(w)) V^T; for KIND GIVEN diag(given). Adds the number of eigenvalues that are zero to rounding to *clamped.
// `scaled`, unless it is null, gets the rows of out times `weight` (n for each matrix), or times 1 where that is null.
extern "C" __global__ void __launch_bounds__(THREADS)
value(const real* __restrict__ V, const real* __restrict__ w, const real* __restrict__ given, real* __restrict__ out,
      const real* __restrict__ weight, real* __restrict__ scaled, unsigned long long* clamped, int n, double alpha,
      double floor) {
    SHARED(shared);
    real* Ut = reinterpret_cast<real*>(shared);  // V^T
    real* y = Ut + N * STRIDE;
    const int64 matrix = blockIdx.x;
    V += matrix * n * n;
    w += matrix * n;
    for (int k = threadIdx.x; k < N * N; k += THREADS) Ut[k % N * STRIDE + k / N] = inside(V, n, k / N, k % N);
    const real tolerance = KIND == GIVEN ? real(0) : zero_tolerance(w, n);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        y[i] = KIND == GIVEN ? given[matrix * n + i] : f(clamp(w[i], tolerance, real(floor)).at, real(alpha));
        if (clamped && w[i] <= tolerance) atomicAdd(clamped, 1ULL);
    }
    __syncthreads();
    real acc[TILE][TILE];
    product(acc, n, Ut, Ut, y);
    each(acc, [&](int i, int j, real x) {
        if (i >= n || j >= n) return;
        const int64 row = matrix * n + i;
        const real finite = bounded(x);
        out[row * n + j] = finite;
        if (scaled) scaled[row * n + j] = weight ? weight[row] * finite : finite;
    });
}

// out = scale V (F * (V^T sym(G) V)) V^T; for KIND GIVEN F is given, (n, n) for each matrix.
extern "C" __global__ void __launch_bounds__(THREADS)
derivative(const real* __restrict__ V, const real* __restrict__ w, const real* __restrict__ given,
           const real* __restrict__ G, real* __restrict__ out, double scale, int n, double alpha,
           double floor) {
    SHARED(shared);
    real* U = reinterpret_cast<real*>(shared);
    real* Ut = U + N * STRIDE;
    real* X = Ut + N * STRIDE;
    real* l = X + N * STRIDE;
    int* largest_exponent = reinterpret_cast<int*>(l + N);
    const int64 matrix = blockIdx.x;
    V += matrix * n * n;
    w += matrix * n;
    G += matrix * n * n;
    if (threadIdx.x == 0) *largest_exponent = NO_EXPONENT;
    __syncthreads();
    const bool broken = __syncthreads_or(raise(largest_exponent, G, n * n, 0, THREADS));
    const int e = *largest_exponent == NO_EXPONENT ? 0 : *largest_exponent;
    const PowerOfTwo down(-e - 1);  // and a half, for the symmetric part
    const Scaling scale_1 = scaling(w, n, real(alpha), real(floor));
    for (int k = threadIdx.x; k < N * N; k += THREADS) {
        const int i = k / N, j = k % N;
        const real x = inside(V, n, i, j);
        U[i * STRIDE + j] = x;
        Ut[j * STRIDE + i] = x;
        X[i * STRIDE + j] = inside(G, n, i, j) * down + inside(G, n, j, i) * down;
    }
    const PowerOfTwo to_1(-scale_1.k);
    const real floor_1 = KIND == EXP ? real(floor) - scale_1.shift : bounded(real(floor) * to_1);
    for (int i = threadIdx.x; i < n; i += THREADS) l[i] = KIND == EXP ? w[i] - scale_1.shift : bounded(w[i] * to_1);
    __syncthreads();
    const real tolerance = KIND == GIVEN ? real(0) : zero_tolerance(l, n);
    for (int i = threadIdx.x; KIND != GIVEN && i < n; i += THREADS) {  // in the columns beside V, which no product reads
        const Entry own = entry(clamp(l[i], tolerance, floor_1));
        U[i * STRIDE + N] = own.at;
        U[i * STRIDE + N + 1] = own.root;
        U[i * STRIDE + N + 2] = own.clamped;
    }
    real acc[TILE][TILE];
    const auto keep = [&](int i, int j, real x) { X[i * STRIDE + j] = x; };
    product(acc, n, X, U, nullptr);  // G V, G being symmetric
    __syncthreads();
    each(acc, keep);
    __syncthreads();
    product(acc, n, U, X, nullptr);  // V^T (G V)
    __syncthreads();
    each(acc, keep);
    __syncthreads();
    const auto at = [&](int i) { return Entry{U[i * STRIDE + N], U[i * STRIDE + N + 1], U[i * STRIDE + N + 2] != 0}; };
    for (int k = threadIdx.x; k < N * N; k += THREADS) {  // all threads take part, not only the owners
        const int i = k / N, j = k % N;
        real F = 0;
        if (KIND == GIVEN) {
            F = inside(given + matrix * n * n, n, i, j);
        } else if (i < n && j < n) {
            const Entry a = at(i), b = at(j);
            F = a.clamped && b.clamped ? real(0) : difference(a, b, real(alpha));
            if (FLOOR && a.clamped != b.clamped) F *= (a.at - b.at) / (l[i] - l[j]);
        }
        X[i * STRIDE + j] *= F;
    }
    __syncthreads();
    product(acc, n, X, Ut, nullptr);  // (F * E) V^T, F * E being symmetric
    __syncthreads();
    each(acc, keep);
    __syncthreads();
    product(acc, n, Ut, X, nullptr);  // V (F * E V^T)
    const double power = fmin(fmax(scale_1.power, -double(FURTHEST)), double(FURTHEST)), whole = ::floor(power);
    const double rest = exp2(power - whole);
    const PowerOfTwo back(int(whole) + e);
    const real factor = real(scale * rest);
    each(acc, [&](int i, int j, real x) {
        if (i < n && j < n) out[(matrix * n + i) * n + j] = broken ? sqrt(real(-1)) : bounded(factor * x * back);
    });
}

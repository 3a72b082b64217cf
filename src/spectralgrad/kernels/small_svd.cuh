// Singular triplets, polar factors and their derivative for a matrix with at most four rows and columns, in one thread's registers.
//
// One-sided Jacobi as in svd.cu, on X (M, N), M >= N. Dot products are taken in double precision, in which the squares of any
// float32 are numbers; columns shorter than NOTHING, relative to the largest entry, count as 0 and are replaced by unit vectors.
//
// The polar factor of X = L diag(s) J^T is Q = L J^T; for the nearest rotation the last column of L, and the last s, change their
// sign where det(L J^T) < 0. With H = J diag(s) J^T its derivative in the direction E is (linalg/polar.py, the plain twin)
//
//     Q W + (I - Q Q^T) E H^-1,     J^T W J = (J^T (Q^T E - E^T Q) J)_ij / (s_i + s_j), and 0 where the sum is 0 to rounding.
//
// Compile-time: REAL (float or double), LARGEST, M, N, NOTHING, NEGLIGIBLE (cosine of two columns that counts as rounding).

#pragma once
typedef long long int64;
typedef REAL real;
typedef double wide;

constexpr int MAX_SWEEPS = 30;  // rounding never needs so many; an end for certain
constexpr wide STEEP = 1e8;     // 1 + z^2 is z^2 from here on, to the last bit

// A matrix of a batch: strides in numbers.
struct Strides { int64 matrix, row, column; };

struct Triplets {
    real G[N][M];  // left vectors, in rows
    real W[N][N];  // right ones
    real S[N];     // times 2^exponent
    int exponent;
    bool broken;   // NaN or Inf in the matrix
};

__device__ __forceinline__ real bounded(real x) { return x != x ? x : fmin(fmax(x, -real(LARGEST)), real(LARGEST)); }

// x 2^k in two steps, cut to the largest number.
__device__ __forceinline__ real shifted(real x, int k) { return bounded(ldexp(ldexp(x, k / 2), k - k / 2)); }

__device__ __forceinline__ int exponent_of(real x) {
    int e = 0;
    if (x > 0) frexp(x, &e);
    return e;
}

template <int SIZE> __device__ __forceinline__ wide dot(const real (&x)[SIZE], const real (&y)[SIZE]) {
    wide sum = 0;
    #pragma unroll
    for (int i = 0; i < SIZE; ++i) sum += wide(x[i]) * wide(y[i]);
    return sum;
}

template <int SIZE> __device__ __forceinline__ void swap(real (&x)[SIZE], real (&y)[SIZE], bool really) {
    #pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        const real a = x[i], b = y[i];
        x[i] = really ? b : a;
        y[i] = really ? a : b;
    }
}

template <int SIZE> __device__ __forceinline__ void rotate(real (&x)[SIZE], real (&y)[SIZE], real s, real half) {
    #pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        const real a = x[i], b = y[i];
        x[i] = a - s * (b + half * a);
        y[i] = b + s * (a - half * b);
    }
}

// Make two columns orthogonal; `cosine` and `sine` as in svd.cu.
__device__ __forceinline__ void turn(Triplets& X, int p, int q, real& cosine, real& sine) {
    const wide a = dot(X.G[p], X.G[p]), b = dot(X.G[q], X.G[q]), c = dot(X.G[p], X.G[q]);
    // The square of the cosine; NaN for an empty column. Squares of squares are no numbers of float64 any more.
    const wide ratio = sizeof(real) == 4 ? wide(0) : c / (sqrt(a) * sqrt(b)), squared = sizeof(real) == 4 ? c * c / (a * b) : ratio * ratio;
    if (!(squared > wide(NEGLIGIBLE) * wide(NEGLIGIBLE))) return;
    const wide z = (b - a) / (2 * c), steep = fabs(z);
    const real t = steep > STEEP ? real(0.5 / z) : real(copysign(1 / (steep + sqrt(1 + z * z)), z));
    const real half = t / (1 + sqrt(1 + t * t)), s = 2 * half / (1 + half * half);
    const real c2 = real(fmin(squared, wide(1)));
    cosine = fmax(cosine, c2);
    sine = fmax(sine, fmax(s * s, c2));
    rotate(X.G[p], X.G[q], s, half);
    rotate(X.W[p], X.W[q], s, half);
}

// Columns longest first. `length` are the squares of the norms.
__device__ __forceinline__ void sort(Triplets& X, wide (&length)[N]) {
    #pragma unroll
    for (int end = N - 1; end > 0; --end)
        #pragma unroll
        for (int k = 0; k < end; ++k) {
            const bool really = length[k] < length[k + 1];
            const wide a = length[k], b = length[k + 1];
            length[k] = really ? b : a;
            length[k + 1] = really ? a : b;
            swap(X.G[k], X.G[k + 1], really);
            swap(X.W[k], X.W[k + 1], really);
        }
}

__device__ __forceinline__ void measure(const Triplets& X, wide (&length)[N]) {
    #pragma unroll
    for (int k = 0; k < N; ++k) length[k] = dot(X.G[k], X.G[k]);
}

// Column k becomes a unit vector orthogonal to those before it: the unit vector of which they hold least, less what they hold.
__device__ __forceinline__ void complete(Triplets& X, int k) {
    real least = 2;
    int best = 0;
    #pragma unroll
    for (int i = 0; i < M; ++i) {
        real held = 0;
        #pragma unroll
        for (int l = 0; l < N; ++l) if (l < k) held += X.G[l][i] * X.G[l][i];
        if (held < least) { least = held; best = i; }
    }
    #pragma unroll
    for (int i = 0; i < M; ++i) X.G[k][i] = real(i == best);
    #pragma unroll
    for (int again = 0; again < 2; ++again)  // once leaves rounding
        #pragma unroll
        for (int l = 0; l < N; ++l)
            if (l < k) {
                const real product = real(dot(X.G[l], X.G[k]));
                #pragma unroll
                for (int i = 0; i < M; ++i) X.G[k][i] -= product * X.G[l][i];
            }
    const wide inverse = 1 / sqrt(dot(X.G[k], X.G[k]));
    #pragma unroll
    for (int i = 0; i < M; ++i) X.G[k][i] = real(X.G[k][i] * inverse);
}

__device__ __forceinline__ Triplets decompose(const real* A, const Strides& at) {
    Triplets X;
    real largest = 0;
    X.broken = false;
    #pragma unroll
    for (int k = 0; k < N; ++k) {
        #pragma unroll
        for (int i = 0; i < M; ++i) {
            const real x = A[i * at.row + k * at.column];
            X.G[k][i] = x;
            X.broken = X.broken || !(fabs(x) <= real(LARGEST));
            largest = fmax(largest, fabs(x));
        }
        #pragma unroll
        for (int i = 0; i < N; ++i) X.W[k][i] = real(i == k);
    }
    X.exponent = X.broken ? 0 : exponent_of(largest);
    #pragma unroll
    for (int k = 0; k < N; ++k)
        #pragma unroll
        for (int i = 0; i < M; ++i) X.G[k][i] = X.broken ? real(0) : ldexp(X.G[k][i], -X.exponent);
    wide length[N];
    measure(X, length);
    sort(X, length);
    for (int sweep = 0; sweep < MAX_SWEEPS; ++sweep) {
        real cosine = 0, sine = 0;
        #pragma unroll
        for (int p = 0; p < N; ++p)
            #pragma unroll
            for (int q = p + 1; q < N; ++q) turn(X, p, q, cosine, sine);
        if (!(cosine * sine > real(NEGLIGIBLE) * real(NEGLIGIBLE))) break;
    }
    measure(X, length);
    sort(X, length);
    #pragma unroll
    for (int k = 0; k < N; ++k) {
        const wide norm = sqrt(length[k]);
        const bool nothing = !(norm >= wide(NOTHING));
        X.S[k] = nothing ? real(0) : real(norm);
        if (nothing) complete(X, k);
        #pragma unroll
        for (int i = 0; i < M; ++i) if (!nothing) X.G[k][i] = real(X.G[k][i] / norm);
    }
    return X;
}

#if M == N
// The determinant, by elimination with the largest pivot of a column.
__device__ __forceinline__ real determinant(real (&Q)[N][N]) {
    real product = 1;
    #pragma unroll
    for (int k = 0; k < N; ++k) {
        #pragma unroll
        for (int i = k + 1; i < N; ++i) {
            const bool really = fabs(Q[i][k]) > fabs(Q[k][k]);
            swap(Q[k], Q[i], really);
            product = really ? -product : product;
        }
        product *= Q[k][k];
        const real inverse = 1 / Q[k][k];  // of an orthogonal matrix: not 0
        #pragma unroll
        for (int i = k + 1; i < N; ++i) {
            const real factor = Q[i][k] * inverse;
            #pragma unroll
            for (int j = k + 1; j < N; ++j) Q[i][j] -= factor * Q[k][j];
        }
    }
    return product;
}
#endif

__device__ __forceinline__ void multiply(const Triplets& X, real (&Q)[M][N]) {
    #pragma unroll
    for (int i = 0; i < M; ++i)
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            real sum = 0;
            #pragma unroll
            for (int k = 0; k < N; ++k) sum += X.G[k][i] * X.W[k][j];
            Q[i][j] = sum;
        }
}

// The polar factor R of a decomposed matrix, or with `special` the nearest rotation: then X has the last vector and value that go with it.
__device__ __forceinline__ void nearest(Triplets& X, bool special, real (&R)[M][N]) {
    multiply(X, R);
#if M == N
    if (!special) return;
    real copy[N][N];
    #pragma unroll
    for (int i = 0; i < N; ++i)
        #pragma unroll
        for (int j = 0; j < N; ++j) copy[i][j] = R[i][j];
    if (!(determinant(copy) < 0)) return;
    #pragma unroll
    for (int i = 0; i < N; ++i) X.G[N - 1][i] = -X.G[N - 1][i];
    X.S[N - 1] = -X.S[N - 1];
    multiply(X, R);
#endif
}

// Whether the smallest divisor of the derivative is not 0 to rounding.
__device__ __forceinline__ bool unique(const Triplets& X, bool special, double eps) {
    const wide last = special ? (wide(X.S[N > 1 ? N - 2 : 0]) + wide(X.S[N - 1])) / 2 : wide(X.S[N - 1]);
    return X.broken || N <= special || !(last <= N * eps * wide(X.S[0]));
}

// The derivative of q in the direction e, for its values s and vectors v; e and s are changed. NaN where one of them is not finite.
__device__ __forceinline__ void derive(const real (&q)[M][N], const real (&v)[N][N], real (&s)[N], real (&e)[M][N], double eps, real (&out)[M][N]) {
    // Direction and singular values at scale 1.
    real largest = 0, longest = 0;
    bool broken = false;
    #pragma unroll
    for (int i = 0; i < M; ++i)
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            broken = broken || !(fabs(e[i][j]) <= real(LARGEST));
            largest = fmax(largest, fabs(e[i][j]));
        }
    #pragma unroll
    for (int k = 0; k < N; ++k) {
        broken = broken || !(fabs(s[k]) <= real(LARGEST));
        longest = fmax(longest, fabs(s[k]));
    }
    const int of_e = broken ? 0 : exponent_of(largest), of_s = broken ? 0 : exponent_of(longest);
    #pragma unroll
    for (int i = 0; i < M; ++i)
        #pragma unroll
        for (int j = 0; j < N; ++j) e[i][j] = ldexp(e[i][j], -of_e);
    #pragma unroll
    for (int k = 0; k < N; ++k) s[k] = ldexp(s[k], -of_s);
    const real rounding = real(N * eps) * s[0];

    // E in the basis J: rows of Q^T E J, and of Q J.
    real ev[M][N], qv[M][N], inner[N][N];
    #pragma unroll
    for (int i = 0; i < M; ++i)
        #pragma unroll
        for (int k = 0; k < N; ++k) {
            real a = 0, b = 0;
            #pragma unroll
            for (int j = 0; j < N; ++j) { a += e[i][j] * v[j][k]; b += q[i][j] * v[j][k]; }
            ev[i][k] = a;
            qv[i][k] = b;
        }
    #pragma unroll
    for (int k = 0; k < N; ++k)
        #pragma unroll
        for (int l = 0; l < N; ++l) {
            real sum = 0;
            #pragma unroll
            for (int i = 0; i < M; ++i) sum += qv[i][k] * ev[i][l];
            inner[k][l] = sum;
        }
    // (Q J) (skew part over sums + what of E lies outside Q, over s) J^T.
    real turned[M][N];
    #pragma unroll
    for (int i = 0; i < M; ++i)
        #pragma unroll
        for (int l = 0; l < N; ++l) {
            real sum = 0, inside = 0;
            #pragma unroll
            for (int k = 0; k < N; ++k) {
                const real divisor = s[k] + s[l];
                if (k != l && divisor > 2 * rounding) sum += qv[i][k] * ((inner[k][l] - inner[l][k]) / divisor);
                inside += qv[i][k] * inner[k][l];
            }
            if (M > N && s[l] > rounding) sum += (ev[i][l] - inside) / s[l];
            turned[i][l] = sum;
        }
    const real nan = sqrt(real(-1));
    #pragma unroll
    for (int i = 0; i < M; ++i)
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            real sum = 0;
            #pragma unroll
            for (int l = 0; l < N; ++l) sum += turned[i][l] * v[j][l];
            out[i][j] = broken ? nan : shifted(sum, of_e - of_s);
        }
}

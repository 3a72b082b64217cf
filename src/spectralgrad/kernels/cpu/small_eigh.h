// Eigenpairs of symmetric 1 x 1, 2 x 2 and 3 x 3 matrices: Jacobi's rotations, all in registers.
//
// Zeroing a_pq takes the rotation by the smaller angle, tan 2 phi = 2 a_pq / (a_qq - a_pp). With d = a_qq - a_pp and h = 2
// a_pq, both with the sign of d, (cos, sin) is (x, h) / |(x, h)| with x = |d| + (d^2 + h^2)^(1/2): nothing cancels, so small
// eigenvalues of graded matrices are right relative to themselves.

#pragma once
#include "symmetric.h"

namespace {

constexpr int MOST_SWEEPS = 15;  // five are usual

template <int i, int j> constexpr int LOWER = i > j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i;

// A: the lower triangle, row by row. Zeroes entry (P, Q); rows P and Q of V turn with it. Lanes without `go` stay.
template <class T, int K, int N, int P, int Q, bool VECTORS> INLINE void rotate(Pack<T, K>* A, Pack<T, K> (*V)[N], Mask<T, K> go) {
    typedef Pack<T, K> X;
    const X one = all<T, K>(1), none = zero<T, K>();
    X &app = A[LOWER<P, P>], &aqq = A[LOWER<Q, Q>], &apq = A[LOWER<P, Q>];
    const X d = aqq - app, h = times_sign(apq + apq, d), x = size(d) + root(d * d + h * h), square = x * x + h * h;
    const Mask<T, K> turns = go & !less(square, Real<T>::tiny);
    const X inverse = one / root(square);
    const X c = select(turns, x * inverse, one), s = select(turns, h * inverse, none), more = select(turns, h * apq / x, none);
    app -= more;
    aqq += more;
    apq = select(go, none, apq);
    if constexpr (N == 3) {
        constexpr int R = 3 - P - Q;
        const X a = A[LOWER<R, P>], b = A[LOWER<R, Q>];
        A[LOWER<R, P>] = c * a - s * b;
        A[LOWER<R, Q>] = s * a + c * b;
    }
    if (VECTORS) UNROLL for (int k = 0; k < N; ++k) {
        const X a = V[P][k], b = V[Q][k];
        V[P][k] = c * a - s * b;
        V[Q][k] = s * a + c * b;
    }
}

template <class T, int K, int N, bool VECTORS> INLINE void order(Pack<T, K>& a, Pack<T, K>& b, Pack<T, K>* x, Pack<T, K>* y) {
    const Mask<T, K> wrong = less(b, a);
    const Pack<T, K> low = select(wrong, b, a);
    b = select(wrong, a, b);
    a = low;
    if (VECTORS) UNROLL for (int k = 0; k < N; ++k) {
        const Pack<T, K> u = select(wrong, y[k], x[k]);
        y[k] = select(wrong, x[k], y[k]);
        x[k] = u;
    }
}

// Whether an entry is more than the rounding of the two on the diagonal, relative to themselves.
PACKED Mask<T, K> matters(Pack<T, K> between, Pack<T, K> a, Pack<T, K> b) {
    constexpr T negligible = Real<T>::eps * Real<T>::eps * T(0.25);
    return less(negligible * size(a * b) + Real<T>::tiny, between * between);
}

// A of size 1: w ascending, eigenvectors in the rows of V.
template <class T, int K, int N, bool VECTORS> INLINE void jacobi(Pack<T, K>* A, Pack<T, K>* w, Pack<T, K> (*V)[N]) {
    typedef Pack<T, K> X;
    UNROLL for (int i = 0; i < N; ++i)
        UNROLL for (int j = 0; j < N; ++j) V[i][j] = all<T, K>(T(i == j));
    const Mask<T, K> always = equal(zero<T, K>(), T(0));
    if constexpr (N == 2) rotate<T, K, N, 0, 1, VECTORS>(A, V, always);
    if constexpr (N == 3) {
        for (int sweep = 0; sweep < MOST_SWEEPS; ++sweep) {
            const Mask<T, K> go = matters(A[1], A[0], A[2]) | matters(A[3], A[0], A[5]) | matters(A[4], A[2], A[5]);
            if (!any(go)) break;
            rotate<T, K, N, 0, 1, VECTORS>(A, V, go);
            rotate<T, K, N, 0, 2, VECTORS>(A, V, go);
            rotate<T, K, N, 1, 2, VECTORS>(A, V, go);
        }
    }
    UNROLL for (int i = 0; i < N; ++i) w[i] = A[i * (i + 1) / 2 + i];
    if constexpr (N == 2) order<T, K, N, VECTORS>(w[0], w[1], V[0], V[1]);
    if constexpr (N == 3) {
        order<T, K, N, VECTORS>(w[0], w[1], V[0], V[1]);
        order<T, K, N, VECTORS>(w[1], w[2], V[1], V[2]);
        order<T, K, N, VECTORS>(w[0], w[1], V[0], V[1]);
    }
}

template <class T, int K, int N, bool VECTORS> APART int small_eigenpairs(const Call& call, int64 first, int64 last) {
    typedef Pack<T, K> X;
    constexpr int ENTRIES = N * N;
    const T* M = (const T*)call.in[0];
    T *w = (T*)call.out[0], *V = (T*)call.out[1];
    int status = 0;
    for (int64 at = first; at < last; at += (int64)LANES<T> * K) {
        X whole[ENTRIES], A[N * (N + 1) / 2], values[N], vectors[N][N];
        Vector<T> stage[ENTRIES > LANES<T> ? ENTRIES : LANES<T>];
        const Tile<T, K> tile = read_symmetric<T, K, N>(N, N, M, at, last, whole, stage);
        UNROLL for (int i = 0; i < N; ++i)
            UNROLL for (int j = 0; j <= i; ++j) A[i * (i + 1) / 2 + j] = whole[i * N + j];
        jacobi<T, K, N, VECTORS>(A, values, vectors);
        status |= tile.status;
        const X scale = power_of_two(tile.e);
        UNROLL for (int i = 0; i < N; ++i) values[i] = bounded(values[i] * scale);
        UNROLL for (int k = 0; k < K; ++k) {
            const Place to = place<T>(at, last, k);
            if (!to.filled) break;
            UNROLL for (int i = 0; i < N; ++i) stage[i] = values[i].v[k] + tile.broken.v[k];
            store<T>(w + to.at * N, N, N, to.filled, (last - to.at) * N, stage);
            if (VECTORS) {
                UNROLL for (int i = 0; i < N; ++i)
                    UNROLL for (int j = 0; j < N; ++j) stage[i * N + j] = vectors[i][j].v[k] + tile.broken.v[k];
                store<T>(V + to.at * ENTRIES, ENTRIES, ENTRIES, to.filled, (last - to.at) * ENTRIES, stage);
            }
        }
    }
    return status;
}

}  // namespace

// Singular triplets and polar factors of square matrices up to 4 x 4, in registers: one-sided Jacobi turns pairs of columns
// of A until all are orthogonal, A V = U diag(s). U comes from a Householder QR of those columns: it is orthonormal whatever
// their lengths, and U V^T the nearest orthogonal matrix to A, also where that is not unique.

#pragma once
#include "products.h"
#include "symmetric.h"

namespace {

constexpr int MOST_TURNS = 20;  // sweeps; five are usual

template <class T, int K, int N> INLINE Pack<T, K> inner(const Pack<T, K>* a, const Pack<T, K>* b) {
    Pack<T, K> s = a[0] * b[0];
    UNROLL for (int r = 1; r < N; ++r) s += a[r] * b[r];
    return s;
}

template <class T, int K, int N> INLINE void turn_pair(Pack<T, K>* x, Pack<T, K>* y, Pack<T, K> c, Pack<T, K> s) {
    UNROLL for (int r = 0; r < N; ++r) {
        const Pack<T, K> u = x[r], w = y[r];
        x[r] = c * u - s * w;
        y[r] = s * u + c * w;
    }
}

template <class T, int K, int N> INLINE void put_first(Mask<T, K> wrong, Pack<T, K>* x, Pack<T, K>* y) {
    UNROLL for (int r = 0; r < N; ++r) {
        const Pack<T, K> u = select(wrong, y[r], x[r]);
        y[r] = select(wrong, x[r], y[r]);
        x[r] = u;
    }
}

// a[j]: column j of a matrix of size 1, which becomes that of U. s: the singular values, descending. V[j]: column j of V.
template <class T, int K, int N> INLINE void small_triplets(Pack<T, K> (*a)[N], Pack<T, K>* s, Pack<T, K> (*V)[N]) {
    typedef Pack<T, K> Q;
    const Q one = all<T, K>(1), none = zero<T, K>();
    constexpr T negligible = Real<T>::eps * Real<T>::eps * T(0.25);
    UNROLL for (int j = 0; j < N; ++j)
        UNROLL for (int r = 0; r < N; ++r) V[j][r] = all<T, K>(T(j == r));
    for (int sweep = 0; sweep < MOST_TURNS; ++sweep) {
        Q length[N];  // squared
        UNROLL for (int j = 0; j < N; ++j) length[j] = inner<T, K, N>(a[j], a[j]);
        bool active = false;
        UNROLL for (int p = 0; p < N - 1; ++p)
            UNROLL for (int q = p + 1; q < N; ++q) {
                const Q along = inner<T, K, N>(a[p], a[q]);
                const Mask<T, K> go = less(negligible * length[p] * length[q] + Real<T>::tiny, along * along);
                active |= any(go);
                const Q d = length[q] - length[p], h = times_sign(along + along, d), x = size(d) + root(d * d + h * h);
                const Q t = select(go, h / x, none), c = one / root(t * t + one), sine = t * c;
                length[p] -= t * along;
                length[q] += t * along;
                turn_pair<T, K, N>(a[p], a[q], c, sine);
                turn_pair<T, K, N>(V[p], V[q], c, sine);
            }
        if (!active) break;
    }
    UNROLL for (int j = 0; j < N; ++j) {  // how many idle sweeps there were must not show: no -0 either
        UNROLL for (int r = 0; r < N; ++r) a[j][r] = a[j][r] + none;
        s[j] = inner<T, K, N>(a[j], a[j]);
    }
    UNROLL for (int last = N - 1; last > 0; --last)
        UNROLL for (int j = 0; j < last; ++j) {
            const Mask<T, K> wrong = less(s[j], s[j + 1]);
            put_first<T, K, 1>(wrong, s + j, s + j + 1);
            put_first<T, K, N>(wrong, a[j], a[j + 1]);
            put_first<T, K, N>(wrong, V[j], V[j + 1]);
        }
    // QR: vectors of reflections below the diagonal, signs of R aside.
    Q tau[N], sign[N];
    UNROLL for (int k = 0; k < N - 1; ++k) {
        Q squares = none;
        UNROLL for (int r = k + 1; r < N; ++r) squares += a[k][r] * a[k][r];
        const Reflection<T, K> found = reflection<T, K>(squares, a[k][k]);
        tau[k] = found.tau;
        sign[k] = with_sign(one, found.beta);
        UNROLL for (int r = k + 1; r < N; ++r) a[k][r] *= found.inverse;
        UNROLL for (int j = k + 1; j < N; ++j) {
            Q w = a[j][k];
            UNROLL for (int r = k + 1; r < N; ++r) w += a[k][r] * a[j][r];
            w *= tau[k];
            a[j][k] -= w;
            UNROLL for (int r = k + 1; r < N; ++r) a[j][r] -= w * a[k][r];
        }
    }
    sign[N - 1] = with_sign(one, a[N - 1][N - 1]);
    UNROLL for (int j = 0; j < N; ++j) s[j] = root(s[j]);
    Q U[N][N];
    UNROLL for (int j = 0; j < N; ++j)
        UNROLL for (int r = 0; r < N; ++r) U[j][r] = j == r ? sign[j] : none;
    UNROLL for (int k = N - 2; k >= 0; --k)
        UNROLL for (int j = k; j < N; ++j) {
            Q w = U[j][k];
            UNROLL for (int r = k + 1; r < N; ++r) w += a[k][r] * U[j][r];
            w *= tau[k];
            U[j][k] -= w;
            UNROLL for (int r = k + 1; r < N; ++r) U[j][r] -= w * a[k][r];
        }
    UNROLL for (int j = 0; j < N; ++j)
        UNROLL for (int r = 0; r < N; ++r) a[j][r] = U[j][r];
}

// A tile at size 1, by columns: a[j][i] is entry (i, j).
template <class T, int K, int N> INLINE Tile<T, K> read_columns(const T* A, bool columns, int64 first, int64 last, Pack<T, K> (*a)[N]) {
    constexpr int ENTRIES = N * N;
    UNROLL for (int k = 0; k < K; ++k) {
        Vector<T> stage[ENTRIES > LANES<T> ? ENTRIES : LANES<T>];
        const Place at = place<T>(first, last, k);
        load<T>(A + at.at * ENTRIES, ENTRIES, ENTRIES, at.filled ? at.filled : 1, (last - at.at) * ENTRIES, stage);
        UNROLL for (int i = 0; i < N; ++i)
            UNROLL for (int j = 0; j < N; ++j) a[j][i].v[k] = stage[columns ? j * N + i : i * N + j];
    }
    Pack<T, K> most = zero<T, K>(), broken = most;
    UNROLL for (int j = 0; j < N; ++j)
        UNROLL for (int i = 0; i < N; ++i) most = larger(most, size(a[j][i]));
    const Exponents<T, K> e = within(exponent(most), Whole<T>(Real<T>::bias - 2));
    const Pack<T, K> scale = power_of_two(-e);
    UNROLL for (int j = 0; j < N; ++j)
        UNROLL for (int i = 0; i < N; ++i) {
            a[j][i] *= scale;
            broken += a[j][i] * zero<T, K>();
        }
    return {e, broken, any(unequal(broken, broken)) ? NOT_FINITE : 0};
}

// Vectors in the rows of a tile into memory.
template <class T, int K, int N> INLINE void write_rows(T* dst, const Pack<T, K> (*x)[N], Pack<T, K> broken, int64 first, int64 last) {
    constexpr int ENTRIES = N * N;
    UNROLL for (int k = 0; k < K; ++k) {
        const Place to = place<T>(first, last, k);
        if (!to.filled) break;
        Vector<T> stage[ENTRIES > LANES<T> ? ENTRIES : LANES<T>];
        UNROLL for (int i = 0; i < N; ++i)
            UNROLL for (int j = 0; j < N; ++j) stage[i * N + j] = x[i][j].v[k] + broken.v[k];
        store<T>(dst + to.at * ENTRIES, ENTRIES, ENTRIES, to.filled, (last - to.at) * ENTRIES, stage);
    }
}
template <class T, int K, int N> INLINE void write_values(T* dst, const Pack<T, K>* s, const Tile<T, K>& tile, int64 first, int64 last) {
    const Pack<T, K> back = power_of_two(tile.e);
    UNROLL for (int k = 0; k < K; ++k) {
        const Place to = place<T>(first, last, k);
        if (!to.filled) break;
        Vector<T> stage[LANES<T>];
        UNROLL for (int i = 0; i < N; ++i) stage[i] = bounded(s[i] * back).v[k] + tile.broken.v[k];
        store<T>(dst + to.at * N, N, N, to.filled, (last - to.at) * N, stage);
    }
}

template <class T, int K, int N> APART int triplets_of_small(const Call& call, int64 first, int64 last) {
    int status = 0;
    for (int64 at = first; at < last; at += (int64)LANES<T> * K) {
        Pack<T, K> a[N][N], s[N], V[N][N];
        const Tile<T, K> tile = read_columns<T, K, N>((const T*)call.in[0], call.layout & 1, at, last, a);
        small_triplets<T, K, N>(a, s, V);
        status |= tile.status;
        write_rows<T, K, N>((T*)call.out[0], a, tile.broken, at, last);
        write_values<T, K, N>((T*)call.out[1], s, tile, at, last);
        write_rows<T, K, N>((T*)call.out[2], V, tile.broken, at, last);
    }
    return status;
}

template <class T, int K> INLINE Pack<T, K> determinant(Pack<T, K> (*a)[2]) { return a[0][0] * a[1][1] - a[0][1] * a[1][0]; }
template <class T, int K> INLINE Pack<T, K> determinant(Pack<T, K> (*a)[3]) {
    return a[0][0] * (a[1][1] * a[2][2] - a[1][2] * a[2][1]) - a[0][1] * (a[1][0] * a[2][2] - a[1][2] * a[2][0]) +
           a[0][2] * (a[1][0] * a[2][1] - a[1][1] * a[2][0]);
}

// in: A. out: Q = U V^T, the singular values and V; the nearest rotation if call.kind, with the last value's sign turned where
// that turns Q.
template <class T, int K, int N> APART int polar_factors(const Call& call, int64 first, int64 last) {
    int status = 0;
    for (int64 at = first; at < last; at += (int64)LANES<T> * K) {
        Pack<T, K> a[N][N], s[N], V[N][N], Q[N][N], turned[N][N];
        const Tile<T, K> tile = read_columns<T, K, N>((const T*)call.in[0], call.layout & 1, at, last, a);
        small_triplets<T, K, N>(a, s, V);
        if (call.kind) {
            const Pack<T, K> sign = with_sign(all<T, K>(1), determinant<T, K>(a) * determinant<T, K>(V));
            s[N - 1] = s[N - 1] * sign;
            UNROLL for (int r = 0; r < N; ++r) a[N - 1][r] = a[N - 1][r] * sign;
        }
        UNROLL for (int i = 0; i < N; ++i)
            UNROLL for (int j = 0; j < N; ++j) {
                Pack<T, K> sum = a[0][i] * V[0][j];
                UNROLL for (int k = 1; k < N; ++k) sum += a[k][i] * V[k][j];
                Q[i][j] = sum;
                turned[i][j] = V[j][i];
            }
        status |= tile.status;
        write_rows<T, K, N>((T*)call.out[0], Q, tile.broken, at, last);
        write_values<T, K, N>((T*)call.out[1], s, tile, at, last);
        write_rows<T, K, N>((T*)call.out[2], turned, tile.broken, at, last);
    }
    return status;
}

}  // namespace

// Singular triplets A = U diag(s) V^T of m x n matrices, m >= n: QR where they are tall, then to bidiagonal form, then QR
// sweeps. One matrix a lane. U and V are stored in rows: U^T and V^T in memory.

#pragma once
#include "bidiagonal.h"
#include "memory.h"
#include "qr.h"
#include "symmetric.h"

namespace {

// A tile of m x n matrices at size 1, rows `ld` packs apart. `stage` holds m * n vectors.
template <class T, int K> INLINE Tile<T, K> read_general(int m, int n, int ld, const T* A, bool columns, int64 first, int64 last,
                                                         Pack<T, K>* R, Vector<T>* stage) {
    const int64 apart = (int64)m * n;
    const int row = columns ? 1 : n, column = columns ? m : 1;
    for (int k = 0; k < K; ++k) {
        const Place at = place<T>(first, last, k);
        load<T>(A + at.at * apart, apart, m * n, at.filled ? at.filled : 1, (last - at.at) * apart, stage);
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; ++j) R[i * ld + j].v[k] = stage[i * row + j * column];
    }
    Pack<T, K> even = zero<T, K>(), odd = even;
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            Pack<T, K>& most = j % 2 ? odd : even;
            most = larger(most, size(R[i * ld + j]));
        }
    const Exponents<T, K> e = within(exponent(larger(even, odd)), Whole<T>(Real<T>::bias - 2));
    const Pack<T, K> scale = power_of_two(-e);
    even = odd = zero<T, K>();
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            R[i * ld + j] *= scale;
            (j % 2 ? odd : even) += R[i * ld + j] * zero<T, K>();
        }
    const Pack<T, K> broken = even + odd;
    return {e, broken, any(unequal(broken, broken)) ? NOT_FINITE : 0};
}

// R (m x n) becomes upper triangular; the vectors of the reflections stay below its diagonal.
PACKED void triangular(int m, int n, int ld, Pack<T, K>* R, Pack<T, K>* tau, Pack<T, K>* v, Pack<T, K>* w) {
    for (int k = 0; k < n; ++k) {
        Pack<T, K>* a = R + (size_t)k * ld + k;
        const Reflection<T, K> found = reflect<T, K>(a, ld, m - k, v);
        tau[k] = found.tau;
        a[0] = found.beta;
        for (int r = 1; r < m - k; ++r) a[(size_t)r * ld] = v[r];
        if (k + 1 == n) break;
        from_left<T, K>(a + 1, ld, m - k, n - k - 1, v, w);
        for (int c = 0; c < n - k - 1; ++c) w[c] *= found.tau;
        take<T, K, false>(a + 1, ld, m - k, n - k - 1, v, w, w, w);
    }
}

// x, m packs of which the first n are given, becomes Q x for the reflections in R.
PACKED void lift(int m, int n, int ld, const Pack<T, K>* R, const Pack<T, K>* tau, Pack<T, K>* x) {
    for (int i = n; i < m; ++i) x[i] = zero<T, K>();
    for (int k = n - 1; k >= 0; --k) {
        const Pack<T, K>* a = R + (size_t)k * ld + k;
        Pack<T, K> even = x[k], odd = zero<T, K>();
        for (int i = 1; i < m - k; ++i) (i % 2 ? odd : even) += a[(size_t)i * ld] * x[k + i];
        const Pack<T, K> s = tau[k] * (even + odd);
        x[k] = x[k] - s;
        for (int i = 1; i < m - k; ++i) x[k + i] = x[k + i] - s * a[(size_t)i * ld];
    }
}

// in: A. out: U^T (n x m), s, V^T (n x n). layout: 1 if A lies in columns.
template <class T, int K> APART int triplets(const Call& call, int64 first, int64 last) {
    typedef Pack<T, K> Q;
    const int m = call.m, n = call.n, ld = row_length(n);
    constexpr int64 MATRICES = (int64)LANES<T> * K;
    const size_t square = (size_t)n * ld;
    const Memory memory(K * ((size_t)m * ld + 3 * square + 8 * n + 7 * (size_t)n + 3 * (size_t)m) + (size_t)m * n);
    if (!memory) return NO_MEMORY;
    Q *A = memory.as<Q>(), *B = A + (size_t)m * ld, *U = B + square, *V = U + square, *d = V + square, *e = d + n;
    Q *of_columns = e + n, *of_rows = of_columns + n, *tau = of_rows + n, *w = tau + n, *u = w + n, *v = u + n, *y = v + m, *x = y + m;
    Rotation<T, K>* turns = (Rotation<T, K>*)(x + m);
    Vector<T>* stage = (Vector<T>*)(turns + 4 * n);
    int status = 0;
    for (int64 at = first; at < last; at += MATRICES) {
        Tile<T, K> tile = read_general<T, K>(m, n, ld, (const T*)call.in[0], call.layout & 1, at, last, A, stage);
        Q* square_part = A;
        if (m > n) {
            triangular<T, K>(m, n, ld, A, tau, v, w);
            square_part = B;
            for (int i = 0; i < n; ++i)
                for (int j = 0; j < n; ++j) B[i * ld + j] = j >= i ? A[i * ld + j] : zero<T, K>();
        }
        bidiagonalise<T, K>(n, ld, square_part, d, e, of_columns, of_rows, v, w, u, y);
        form_side<T, K, false>(n, ld, U, square_part, of_columns, v);
        form_side<T, K, true>(n, ld, V, square_part, of_rows, v);
        if (n > 1) make_diagonal<T, K>(n, d, e, U, V, turns);
        Q left = zero<T, K>();
        for (int i = 0; i < n - 1; ++i) left = larger(left, size(e[i]));
        const Mask<T, K> unfinished = less(zero<T, K>(), left);
        if (any(unfinished)) {
            tile.broken = select(unfinished, all<T, K>(__builtin_nan("")), tile.broken);
            tile.status |= NOT_CONVERGED;
        }
        status |= tile.status;
        const Q back = power_of_two(tile.e);
        for (int i = 0; i < n; ++i) {
            const Q sign = select(less(d[i], zero<T, K>()), all<T, K>(-1), all<T, K>(1));
            for (int j = 0; j < n; ++j) V[i * ld + j] *= sign;
            d[i] = bounded(size(d[i]) * back) + tile.broken;
            e[i] = -d[i];  // ascending, they are in the order of descending values
        }
        Bits<T>* rank = (Bits<T>*)turns;
        for (int k = 0; k < K; ++k) ranks<T>((const Vector<T>*)e + k, K, n, rank + (size_t)k * n);
        for (int i = 0; i < n; ++i) {
            const Q* row = U + (size_t)i * ld;
            if (m > n) {
                for (int j = 0; j < n; ++j) x[j] = row[j];
                lift<T, K>(m, n, ld, A, tau, x);
                row = x;
            }
            for (int k = 0; k < K; ++k) {
                const Place to = place<T>(at, last, k);
                if (!to.filled) break;
                const Bits<T> r = rank[(size_t)k * n + i];
                const Vector<T> broken = tile.broken.v[k];
                store_row<T>((const Vector<T>*)row + k, K, m, broken, r, (T*)call.out[0] + to.at * m * n, (int64)m * n, to.filled);
                store_row<T>((const Vector<T>*)(d + i) + k, K, 1, broken, r, (T*)call.out[1] + to.at * n, n, to.filled);
                const Vector<T>* right = (const Vector<T>*)(V + (size_t)i * ld) + k;
                store_row<T>(right, K, n, broken, r, (T*)call.out[2] + to.at * n * n, (int64)n * n, to.filled);
            }
        }
    }
    return status;
}

}  // namespace

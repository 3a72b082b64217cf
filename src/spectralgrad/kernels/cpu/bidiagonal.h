// A square matrix becomes upper bidiagonal, P^T A Q = B, by reflections from both sides (Golub and Kahan), each lane its own.
// d is the diagonal of B, e what stands above it. The reflections stay in A: those of column k below its diagonal, those of
// row k right of the entry beside it; the leading 1 of each is not kept.

#pragma once
#include "householder.h"

namespace {

// The reflection of `length` numbers of x, `stride` apart, onto the first; v gets its vector.
PACKED Reflection<T, K> reflect(const Pack<T, K>* x, int stride, int length, Pack<T, K>* v) {
    Pack<T, K> even = zero<T, K>(), odd = even;
    for (int c = 1; c < length; ++c) {
        const Pack<T, K> y = x[(size_t)c * stride];
        (c % 2 ? odd : even) += y * y;
    }
    const Reflection<T, K> found = reflection<T, K>(even + odd, x[0]);
    v[0] = all<T, K>(1);
    for (int c = 1; c < length; ++c) v[c] = x[(size_t)c * stride] * found.inverse;
    return found;
}

// w = A^T v for a block of `rows` x `columns`.
PACKED void from_left(const Pack<T, K>* A, int ld, int rows, int columns, const Pack<T, K>* v, Pack<T, K>* w) {
    constexpr int MANY = 4;
    int c = 0;
    for (; c + MANY <= columns; c += MANY) {
        Pack<T, K> s[MANY];
        UNROLL for (int k = 0; k < MANY; ++k) s[k] = zero<T, K>();
        for (int r = 0; r < rows; ++r) {
            const Pack<T, K>* a = A + (size_t)r * ld + c;
            UNROLL for (int k = 0; k < MANY; ++k) s[k] += v[r] * a[k];
        }
        UNROLL for (int k = 0; k < MANY; ++k) w[c + k] = s[k];
    }
    for (; c < columns; ++c) {
        Pack<T, K> s = zero<T, K>();
        for (int r = 0; r < rows; ++r) s += v[r] * A[(size_t)r * ld + c];
        w[c] = s;
    }
}

// y = A u.
PACKED void from_right(const Pack<T, K>* A, int ld, int rows, int columns, const Pack<T, K>* u, Pack<T, K>* y) {
    constexpr int MANY = 4;
    int r = 0;
    for (; r + MANY <= rows; r += MANY) {
        const Pack<T, K>* a = A + (size_t)r * ld;
        Pack<T, K> s[MANY];
        UNROLL for (int k = 0; k < MANY; ++k) s[k] = zero<T, K>();
        for (int c = 0; c < columns; ++c)
            UNROLL for (int k = 0; k < MANY; ++k) s[k] += u[c] * a[k * ld + c];
        UNROLL for (int k = 0; k < MANY; ++k) y[r + k] = s[k];
    }
    for (; r < rows; ++r) y[r] = dot<T, K>(A + (size_t)r * ld, u, columns);
}

// A -= v w^T, and with TWO also y u^T.
template <class T, int K, bool TWO> INLINE void take(Pack<T, K>* A, int ld, int rows, int columns, const Pack<T, K>* v,
                                                     const Pack<T, K>* w, const Pack<T, K>* y, const Pack<T, K>* u) {
    for (int r = 0; r < rows; r += 2) {
        const bool pair = r + 1 < rows;
        Pack<T, K>*a = A + (size_t)r * ld, *b = pair ? a + ld : a;
        const Pack<T, K> va = v[r], vb = v[r + pair], ya = TWO ? y[r] : va, yb = TWO ? y[r + pair] : vb;
        for (int c = 0; c < columns; ++c) {
            const Pack<T, K> wc = w[c], uc = TWO ? u[c] : wc;
            a[c] = TWO ? a[c] - va * wc - ya * uc : a[c] - va * wc;
            if (pair) b[c] = TWO ? b[c] - vb * wc - yb * uc : b[c] - vb * wc;
        }
    }
}

// Scratch: v, w, u and y hold n packs each.
PACKED void bidiagonalise(int n, int ld, Pack<T, K>* A, Pack<T, K>* d, Pack<T, K>* e, Pack<T, K>* of_columns,
                          Pack<T, K>* of_rows, Pack<T, K>* v, Pack<T, K>* w, Pack<T, K>* u, Pack<T, K>* y) {
    for (int k = 0; k < n; ++k) {
        Pack<T, K>* a = A + (size_t)k * ld + k;
        const int m = n - k;
        if (m == 1) {
            d[k] = a[0];
            of_columns[k] = zero<T, K>();
            break;
        }
        const Reflection<T, K> column = reflect<T, K>(a, ld, m, v);
        of_columns[k] = column.tau;
        d[k] = column.beta;
        for (int r = 1; r < m; ++r) a[(size_t)r * ld] = v[r];
        from_left<T, K>(a + 1, ld, m, m - 1, v, w);
        for (int c = 0; c < m - 1; ++c) {
            w[c] *= column.tau;
            a[1 + c] = a[1 + c] - w[c];  // row k is final; those below wait for both reflections
        }
        if (m == 2) {
            e[k] = a[1];
            of_rows[k] = zero<T, K>();
            a[ld + 1] = a[ld + 1] - v[1] * w[0];
            continue;
        }
        const Reflection<T, K> row = reflect<T, K>(a + 1, 1, m - 1, u);
        of_rows[k] = row.tau;
        e[k] = row.beta;
        for (int c = 1; c < m - 1; ++c) a[1 + c] = u[c];
        from_right<T, K>(a + ld + 1, ld, m - 1, m - 1, u, y);
        const Pack<T, K> g = dot<T, K>(w, u, m - 1);
        for (int r = 0; r < m - 1; ++r) y[r] = row.tau * (y[r] - v[r + 1] * g);
        take<T, K, true>(a + ld + 1, ld, m - 1, m - 1, v + 1, w, y, u);
    }
}

// W becomes W H for the reflection with vector x (x[0] = 1) in rows k, ..., n - 1; so far W is the identity but in the rows
// and columns after k.
PACKED void apply_reflection(int n, int ld, Pack<T, K>* W, int k, const Pack<T, K>* x, Pack<T, K> tau) {
    const int m = n - k - 1;
    for (int r = k + 1; r < n; ++r) {
        Pack<T, K>* a = W + (size_t)r * ld + k + 1;
        const Pack<T, K> s = tau * dot<T, K>(a, x + 1, m);
        a[-1] = -s;
        for (int c = 0; c < m; ++c) a[c] = a[c] - s * x[1 + c];
    }
    Pack<T, K>* a = W + (size_t)k * ld + k;
    a[0] = all<T, K>(1) - tau;
    for (int c = 0; c < m; ++c) a[1 + c] = -(tau * x[1 + c]);
}

// P^T (RIGHT false) or Q^T into W, n x n, from what bidiagonalise left in A.
template <class T, int K, bool RIGHT> APART void form_side(int n, int ld, Pack<T, K>* W, const Pack<T, K>* A, const Pack<T, K>* tau,
                                                           Pack<T, K>* x) {
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) W[(size_t)i * ld + j] = all<T, K>(T(i == j));
    x[0] = all<T, K>(1);
    for (int k = n - 2 - RIGHT; k >= 0; --k) {
        for (int c = 1; c < n - k - RIGHT; ++c) x[c] = RIGHT ? A[(size_t)k * ld + k + 1 + c] : A[(size_t)(k + c) * ld + k];
        apply_reflection<T, K>(n, ld, W, k + RIGHT, x, tau[k]);
    }
}

}  // namespace

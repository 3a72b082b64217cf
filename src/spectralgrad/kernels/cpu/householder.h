// A symmetric matrix becomes tridiagonal, Q^T A Q = T, by reflections I - tau v v^T: each lane its own matrix.
//
// Rows are taken from the last one up, as in EISPACK's tred2: reflection i turns what row i has left of its subdiagonal
// entry into that entry, and v replaces it there. With p = tau A v - (tau/2)(tau v^T A v) v,
//
//     (I - tau v v^T) A (I - tau v v^T) = A - v p^T - p v^T.
//
// Two reflections are applied to A at a time: one pass over it, four products an entry, instead of two passes.

#pragma once
#include "vector.h"

namespace {

constexpr int row_length(int n) { return n | 1; }  // odd: rows of a tile must not all lie in the same places of the cache

PACKED Pack<T, K> zero() { return all<T, K>(T(0)); }

PACKED Pack<T, K> dot(const Pack<T, K>* a, const Pack<T, K>* b, int n) {
    Pack<T, K> even = zero<T, K>(), odd = even;
    int c = 0;
    for (; c + 1 < n; c += 2) {
        even += a[c] * b[c];
        odd += a[c + 1] * b[c + 1];
    }
    if (c < n) even += a[c] * b[c];
    return even + odd;
}

// What makes (rest, x) to (0, beta), given the sum of the squares of the rest: v = (rest times `inverse`, 1).
template <class T, int K> struct Reflection { Pack<T, K> tau, beta, inverse; };
PACKED Reflection<T, K> reflection(Pack<T, K> squares, Pack<T, K> x) {
    const Pack<T, K> one = all<T, K>(1), length = with_sign(root(squares + x * x), x), sum = x + length;
    const Mask<T, K> nothing = at_most(squares, Real<T>::tiny);
    return {select(nothing, zero<T, K>(), sum / select(nothing, one, length)), select(nothing, x, -length),
            select(nothing, zero<T, K>(), one / select(nothing, one, sum))};
}

// The reflection of x[0..i-1] onto its last number; x becomes v. Returns tau and beta.
PACKED Reflection<T, K> reflect_row(Pack<T, K>* x, int i) {
    const Reflection<T, K> found = reflection<T, K>(dot<T, K>(x, x, i - 1), x[i - 1]);
    for (int c = 0; c < i - 1; ++c) x[c] *= found.inverse;
    x[i - 1] = all<T, K>(1);
    return found;
}

// p = A x for the symmetric i x i matrix whose lower triangle is in A; two rows at a time.
PACKED void symmetric_product(const Pack<T, K>* A, int ld, int i, const Pack<T, K>* x, Pack<T, K>* p) {
    typedef Pack<T, K> Q;
    for (int c = 0; c < i; ++c) p[c] = zero<T, K>();
    int r = 0;
    for (; r + 2 <= i; r += 2) {
        const Q *a = A + (size_t)r * ld, *b = a + ld, u = x[r], v = x[r + 1];
        Q s = zero<T, K>(), t = s;
        for (int c = 0; c < r; ++c) {
            const Q y = x[c];
            s += a[c] * y;
            t += b[c] * y;
            p[c] += a[c] * u + b[c] * v;
        }
        const Q between = b[r];
        p[r] += s + a[r] * u + between * v;
        p[r + 1] += t + between * u + b[r + 1] * v;
    }
    if (r < i) {
        const Q *a = A + (size_t)r * ld, u = x[r];
        Q s = zero<T, K>();
        for (int c = 0; c < r; ++c) {
            s += a[c] * x[c];
            p[c] += a[c] * u;
        }
        p[r] += s + a[r] * u;
    }
}

// p, which is A v, as the comment at the top says.
PACKED void halved(Pack<T, K>* p, const Pack<T, K>* v, Pack<T, K> tau, int i) {
    const Pack<T, K> along = T(0.5) * tau * tau * dot<T, K>(p, v, i);
    for (int c = 0; c < i; ++c) p[c] = tau * p[c] - along * v[c];
}

// A (n x n, lower triangle) -> T: d its diagonal, e[i] between i and i + 1. Row i of A keeps v, and tau[i] its tau.
template <class T, int K, int N> APART void tridiagonalise(int given_n, Pack<T, K>* A, Pack<T, K>* d, Pack<T, K>* e,
                                                           Pack<T, K>* tau, Pack<T, K>* p, Pack<T, K>* q) {
    typedef Pack<T, K> Q;
    const int n = N ? N : given_n, ld = row_length(n);
    int i = n - 1;
    for (; i >= 2; i -= 2) {
        Q *x = A + (size_t)i * ld, *y = x - ld;
        d[i] = x[i];
        const Reflection<T, K> first = reflect_row<T, K>(x, i);
        tau[i] = first.tau;
        e[i - 1] = first.beta;
        symmetric_product<T, K>(A, ld, i, x, p);
        halved<T, K>(p, x, tau[i], i);
        const Q u = x[i - 1], s = p[i - 1];
        for (int c = 0; c < i; ++c) y[c] = y[c] - u * p[c] - s * x[c];  // row i - 1 is up to date; the others wait
        const int j = i - 1;
        d[j] = y[j];
        if (j == 1) {
            e[0] = y[0];
            tau[1] = zero<T, K>();
            A[0] = A[0] - T(2) * x[0] * p[0];
            i = 0;
            break;
        }
        const Reflection<T, K> second = reflect_row<T, K>(y, j);
        tau[j] = second.tau;
        e[j - 1] = second.beta;
        symmetric_product<T, K>(A, ld, j, y, q);
        const Q g = dot<T, K>(p, y, j), h = dot<T, K>(x, y, j);
        for (int c = 0; c < j; ++c) q[c] = q[c] - x[c] * g - p[c] * h;  // of what A would be
        halved<T, K>(q, y, tau[j], j);
        for (int r = 0; r < j; r += 2) {
            const bool pair = r + 1 < j;
            Q *a = A + (size_t)r * ld, *b = pair ? a + ld : a;
            const Q x0 = x[r], p0 = p[r], y0 = y[r], q0 = q[r];
            if (!pair) {
                for (int c = 0; c <= r; ++c) a[c] = a[c] - x0 * p[c] - p0 * x[c] - y0 * q[c] - q0 * y[c];
                break;
            }
            const Q x1 = x[r + 1], p1 = p[r + 1], y1 = y[r + 1], q1 = q[r + 1];
            for (int c = 0; c <= r; ++c) {
                const Q xc = x[c], pc = p[c], yc = y[c], qc = q[c];
                a[c] = a[c] - x0 * pc - p0 * xc - y0 * qc - q0 * yc;
                b[c] = b[c] - x1 * pc - p1 * xc - y1 * qc - q1 * yc;
            }
            b[r + 1] = b[r + 1] - x1 * p1 - p1 * x1 - y1 * q1 - q1 * y1;
        }
    }
    if (i == 1) {
        d[1] = A[ld + 1];
        e[0] = A[ld];
        tau[1] = zero<T, K>();
    }
    d[0] = A[0];
}

// Q^T in the place of A, from the reflections in its rows, two at a time: then rows turn into eigenvectors.
template <class T, int K, int N> APART void form(int given_n, Pack<T, K>* A, const Pack<T, K>* tau, Pack<T, K>* x,
                                                 Pack<T, K>* y) {
    typedef Pack<T, K> Q;
    const int n = N ? N : given_n, ld = row_length(n);
    const Q none = zero<T, K>(), one = all<T, K>(1);
    constexpr int ROWS = 2;
    A[0] = A[ld + 1] = one;
    A[1] = A[ld] = none;
    int i = 2;
    for (; i + 1 < n; i += 2) {
        Q *xi = A + (size_t)i * ld, *yi = xi + ld;
        for (int c = 0; c < i; ++c) x[c] = xi[c];
        x[i] = none;
        for (int c = 0; c <= i; ++c) y[c] = yi[c];
        const Q t1 = tau[i], t2 = tau[i + 1], g = dot<T, K>(x, y, i);
        int r = 0;
        for (; r + ROWS <= i; r += ROWS) {
            Q *a = A + (size_t)r * ld, s[ROWS], t[ROWS];
            UNROLL for (int k = 0; k < ROWS; ++k) s[k] = t[k] = none;
            for (int c = 0; c < i; ++c) {
                const Q xc = x[c], yc = y[c];
                UNROLL for (int k = 0; k < ROWS; ++k) {
                    const Q b = a[k * ld + c];
                    s[k] += b * xc;
                    t[k] += b * yc;
                }
            }
            UNROLL for (int k = 0; k < ROWS; ++k) {
                s[k] *= t1;
                t[k] = t2 * (t[k] - s[k] * g);
            }
            for (int c = 0; c < i; ++c) {
                const Q xc = x[c], yc = y[c];
                UNROLL for (int k = 0; k < ROWS; ++k) a[k * ld + c] = a[k * ld + c] - s[k] * xc - t[k] * yc;
            }
            UNROLL for (int k = 0; k < ROWS; ++k) {
                a[k * ld + i] = -(t[k] * y[i]);
                a[k * ld + i + 1] = none;
            }
        }
        for (; r < i; ++r) {
            Q *a = A + (size_t)r * ld, s = none, t = none;
            for (int c = 0; c < i; ++c) {
                s += a[c] * x[c];
                t += a[c] * y[c];
            }
            s *= t1;
            t = t2 * (t - s * g);
            for (int c = 0; c < i; ++c) a[c] = a[c] - s * x[c] - t * y[c];
            a[i] = -(t * y[i]);
            a[i + 1] = none;
        }
        const Q t = t2 * y[i];
        for (int c = 0; c < i; ++c) xi[c] = -(t * y[c]);
        xi[i] = one - t * y[i];
        xi[i + 1] = none;
        for (int c = 0; c <= i; ++c) yi[c] = none;
        yi[i + 1] = one;
    }
    if (i < n) {
        Q* xi = A + (size_t)i * ld;
        for (int c = 0; c < i; ++c) x[c] = xi[c];
        for (int r = 0; r < i; ++r) {
            Q *a = A + (size_t)r * ld, s = tau[i] * dot<T, K>(a, x, i);
            for (int c = 0; c < i; ++c) a[c] -= s * x[c];
            a[i] = none;
        }
        for (int c = 0; c < i; ++c) xi[c] = none;
        xi[i] = one;
    }
}

}  // namespace

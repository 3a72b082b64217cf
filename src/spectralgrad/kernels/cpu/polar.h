// The derivative of polar factors of square matrices. For A = Q H with H = V diag(s) V^T and a direction E,
//
//     dQ = Q W,   H W + W H = Q^T E - E^T Q,   so   W = V ((V^T (Q^T E - E^T Q) V) / (s_i + s_j)) V^T.
//
// The map is its own adjoint. Pairs whose sum is zero to rounding give 0. linalg/polar.py is the twin.

#pragma once
#include "products.h"

namespace {

// in: Q, s, V, E. number: eps that rounding is relative to. E comes to size 1, and the sums do; what overflows in the end becomes the
// largest number.
template <class T, int N> APART int polar_derivative(const Call& call, int64 first, int64 last) {
    typedef One<T> X;
    const int n = N ? N : call.n, entries = n * n;
    const T *Q = (const T*)call.in[0], *s = (const T*)call.in[1], *V = (const T*)call.in[2], *E = (const T*)call.in[3];
    const Memory memory((size_t)5 * entries + n);
    if (!memory) return NO_MEMORY;
    X *q = memory.as<X>(), *v = q + entries, *e = v + entries, *a = e + entries, *b = a + entries, *values = b + entries;
    const T rounding = T(2 * n * call.number[0]);
    int status = 0;
    for (int64 at = first; at < last; at += LANES<T>) {
        read_matrix<T>(Q, n, call.layout & 1, at, last, q);
        read_matrix<T>(V, n, call.layout & 4, at, last, v);
        read_matrix<T>(E, n, call.layout & 8, at, last, e);
        read_numbers<T>(s, n, at, last, values);
        const Looked<T> slopes = look_at<T>(e, entries), sizes = look_at<T>(values, n);
        const X broken = slopes.broken + sizes.broken;
        const Exponents<T, 1> t = scale_of<T>(slopes.largest), k = scale_of<T>(sizes.largest);
        const PowerOfTwo<T, 1> down = power(-t), to_1 = power(-k), back = power(t - k);
        for (int i = 0; i < entries; ++i) e[i] = e[i] * down;
        for (int i = 0; i < n; ++i) values[i] = values[i] * to_1;
        product<T, 1, N, AT_B, false>(n, q, e, a);
        for (int i = 0; i < n; ++i) {
            for (int j = 0; j < i; ++j) {
                const X skew = a[i * n + j] - a[j * n + i];
                a[i * n + j] = skew;
                a[j * n + i] = -skew;
            }
            a[i * n + i] = zero<T, 1>();
        }
        product<T, 1, N, A_B, false>(n, a, v, b);
        product<T, 1, N, AT_B, true>(n, v, b, a);
        for (int i = 0; i < n; ++i) {
            for (int j = 0; j < i; ++j) {
                const X sum = values[i] + values[j];
                const Mask<T, 1> nothing = at_most(sum, rounding * values[0]);
                const X w = select(nothing, zero<T, 1>(), a[i * n + j] / select(nothing, all<T, 1>(1), sum));
                a[i * n + j] = w;
                a[j * n + i] = -w;
            }
            a[i * n + i] = zero<T, 1>();
        }
        product<T, 1, N, A_BT, false>(n, a, v, b);
        product<T, 1, N, A_B, false>(n, v, b, a);
        product<T, 1, N, A_B, false>(n, q, a, b);
        for (int i = 0; i < entries; ++i) b[i] = bounded(b[i] * back) + (b[i] - b[i]) + broken;
        if (any(unequal(broken, broken))) status |= NOT_FINITE;
        write_numbers<T>((T*)call.out[0], entries, at, last, b);
    }
    return status;
}

}  // namespace

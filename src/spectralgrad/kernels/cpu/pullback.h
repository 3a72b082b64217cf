// The gradient of a matrix from those of its eigenvalues and eigenvectors:
//
//     V (sym(K * X) + diag(gw)) V^T,   X = V^T gV,   K by a rule, or given.
//
// K is antisymmetric, so what counts of X is its skew part; at a close pair it is taken for zero where it is no more than
// rounding. All is computed at size 1 and brought back last: eigenvalues are divided by 2^k, K being K / 2^k then if it is
// free of scale, and gradients by 2^t. kernels/eigenpairs.cu does the same, linalg/eigh.py and linalg/rules are the twins.

#pragma once
#include "products.h"

namespace {

enum Rule { GIVEN_K, ANALYTIC, CLIP, EXACT, LORENTZIAN, TAYLOR };

// K of eigenvalues a and b, where a comes first and b - a is the gap; `largest` is the size of the largest.
template <class T> INLINE One<T> coefficient(int rule, One<T> a, One<T> b, One<T> largest, int n, T number) {
    const One<T> one = all<T, 1>(1), none = zero<T, 1>(), gap = b - a;
    const Mask<T, 1> tie = equal(gap, T(0));
    const One<T> order = select(less(gap, none), -one, one);
    switch (rule) {
        case ANALYTIC: return select(tie, order * T(__builtin_inf()), one / gap);
        case CLIP: return select(at_most(size(gap), T(1) / number), order * number, one / gap);
        case EXACT: {
            const One<T> rounding = T(n > 16 ? n : 16) * Real<T>::eps * largest;
            return select(at_most(size(gap), rounding), none, bounded(one / gap));
        }
        case LORENTZIAN: {
            const One<T> unit = select(less(none, largest), largest, one), relative = gap / unit;
            return select(tie, none, bounded(relative / (relative * relative + number * number) / unit));
        }
        default: {
            const Mask<T, 1> leads = at_most(size(b), size(a));
            const One<T> larger_ = select(leads, a, b), ratio = select(leads, b, a) / larger_;
            const T least = (number + 1) / T(__builtin_sqrt((double)Real<T>::largest));
            One<T> sum = one;
            for (int k = 0; k < int(number); ++k) sum = one + ratio * sum;
            return select(at_most(size(larger_), least * largest), none, bounded(order * sum / size(larger_)));
        }
    }
}

// in: V, w, gV, gw or null, K or null. number: that of the rule; CLOSE and NOISE of linalg. m: whether K is free of scale.
template <class T, int N> APART int pull_back(const Call& call, int64 first, int64 last) {
    typedef One<T> Q;
    const int n = N ? N : call.n, entries = n * n;
    const T *V = (const T*)call.in[0], *w = (const T*)call.in[1], *gV = (const T*)call.in[2];
    const T *gw = (const T*)call.in[3], *given = (const T*)call.in[4];
    const bool columns = call.layout & 1, gradients_in_columns = call.layout & 4, scale_free = call.m;
    const T number = T(call.number[0]), close = T(call.number[1]), noise_of = T(call.number[2]) * Real<T>::eps;
    const Memory memory((size_t)4 * entries + 3 * n);
    if (!memory) return NO_MEMORY;
    Q *W = memory.as<Q>(), *G = W + entries, *X = G + entries, *K = X + entries, *l = K + entries, *g = l + n, *noise = g + n;
    int status = 0;
    for (int64 at = first; at < last; at += LANES<T>) {
        read_matrix<T>(V, n, !columns, at, last, W);  // eigenvectors in rows
        read_matrix<T>(gV, n, !gradients_in_columns, at, last, G);
        read_numbers<T>(w, n, at, last, l);
        if (at + LANES<T> < last) {
            ask_for<T>(V, entries, at + LANES<T>, last);
            ask_for<T>(gV, entries, at + LANES<T>, last);
        }
        const Looked<T> values = look_at<T>(l, n), vectors = look_at<T>(G, entries);
        Q broken = values.broken + vectors.broken;
        Exponents<T, 1> k = scale_of<T>(values.largest), t = scale_of<T>(vectors.largest);
        if (!scale_free) k = k - k;
        if (gw) {
            read_numbers<T>(gw, n, at, last, g);
            const Looked<T> slopes = look_at<T>(g, n);
            broken += slopes.broken;
            const Mask<T, 1> some = less(zero<T, 1>(), slopes.largest), only = some & equal(vectors.largest, T(0));
            const Exponents<T, 1> e = scale_of<T>(slopes.largest) + k;
            t = select_exponents<T>(only, e, select_exponents<T>(some, larger(t, e), t));
        }
        if (given) read_matrix<T>(given, n, false, at, last, K);
        const PowerOfTwo<T, 1> down = power(-t), down_values = power(k - t), back = power(t - k), to_1 = power(-k);
        for (int i = 0; i < entries; ++i) G[i] = G[i] * down;
        for (int i = 0; i < n; ++i) {
            l[i] = l[i] * to_1;
            noise[i] = noise_of * root(dot<T, 1>(G + i * n, G + i * n, n));
        }
        product<T, 1, N, A_BT, false>(n, W, G, X);  // V^T gV
        const Q largest = larger(size(l[0]), size(l[n - 1]));
        const Q tie = largest * T((n < 16 ? 16 : n) * Real<T>::eps);  // as in linalg/rules/base.py
        for (int i = 0; i < n; ++i) {
            for (int j = 0; j < i; ++j) {
                const Q x = X[j * n + i], y = X[i * n + j], skew = T(0.5) * (x - y);
                const Mask<T, 1> little = at_most(size(skew), noise[i] + noise[j]);
                if (any(at_most(size(l[i] - l[j]), tie) & less(noise[i] + noise[j], larger(size(x), size(y))))) status |= TIED;
                Q inner;
                if (given) {
                    const Q a = K[j * n + i], b = K[i * n + j];
                    const Mask<T, 1> p = little & less(all<T, 1>(close), size(a) * largest);
                    const Mask<T, 1> q = little & less(all<T, 1>(close), size(b) * largest);
                    inner = T(0.5) * (a * select(p, x - skew, x) + b * select(q, y + skew, y));
                } else {
                    const Q a = coefficient<T>(call.kind, l[j], l[i], largest, n, number);
                    inner = a * select(little & less(all<T, 1>(close), size(a) * largest), zero<T, 1>(), skew);
                }
                X[i * n + j] = X[j * n + i] = inner;
            }
            Q inner = given ? K[i * n + i] * X[i * n + i] : zero<T, 1>();
            X[i * n + i] = gw ? inner + g[i] * down_values : inner;
        }
        product<T, 1, N, A_B, false>(n, X, W, G);     // inner V^T
        product<T, 1, N, AT_B, true>(n, W, G, X);     // V (inner V^T)
        for (int i = 0; i < n; ++i)
            for (int j = 0; j <= i; ++j) {
                const Q x = X[i * n + j];
                X[i * n + j] = X[j * n + i] = bounded(x * back) + (x - x) + broken;
            }
        if (any(unequal(broken, broken))) status |= NOT_FINITE;
        write_numbers<T>((T*)call.out[0], entries, at, last, X);
    }
    return status;
}

}  // namespace

// V diag(f(w)) V^T and its derivative V (F * (V^T sym(G) V)) V^T. F is the Loewner matrix of f, F_ij = (f(l_i) - f(l_j)) /
// (l_i - l_j) and f'(l_i) at ties, written without cancellation: linalg/elementary.py derives it. Results are symmetric to
// the last bit: one triangle is computed.
//
// Everything is computed at size 1 and brought back last, by powers of two, so that nothing overflows on the way: G always,
// eigenvalues outside ORDINARY. What overflows in the end becomes the largest number. kernels/spectral.cu does the same.

#pragma once
#include "elementary.h"

namespace {

enum Function { GIVEN_F, SQRT, INVERSE_SQRT, POWER, LOG, EXP };
enum Border { NOTHING, TO_ZERO, TO_ROUNDING, NOT_NEGATIVE };  // what becomes of eigenvalues that are zero to rounding
constexpr int ZERO = 4;  // times eps times the largest: as in linalg/scalars.py

// A function with its numbers: as the call says it. m: the border, and 8 more for a floor.
struct Scalar {
    int kind, border;
    bool floored;
    double alpha, floor;
    explicit Scalar(const Call& call)
        : kind(call.kind), border(call.m & 7), floored(call.m & 8), alpha(call.number[0]), floor(call.number[1]) {}
};

template <class T> INLINE One<T> zero_tolerance(const Scalar& f, const One<T>* w, int n) {
    const One<T> tolerance = T(ZERO) * Real<T>::eps * larger(-w[0], w[n - 1]);
    return f.border == TO_ROUNDING ? larger(tolerance, all<T, 1>(Real<T>::tiny * Real<T>::eps)) : tolerance;
}

// An eigenvalue inside the domain, and whether it was clamped to that.
template <class T> struct Clamped { One<T> at; Mask<T, 1> is; };
template <class T> INLINE Clamped<T> clamp(const Scalar& f, One<T> w, One<T> tolerance, One<T> floor) {
    const One<T> none = zero<T, 1>();
    const Mask<T, 1> low = f.floored ? less(w, floor) : f.border == NOT_NEGATIVE ? less(w, none) : at_most(w, tolerance);
    if (!f.floored && f.border == NOTHING) return {w, unequal(none, none)};
    return {select(low, f.floored ? floor : f.border == TO_ROUNDING ? tolerance : none, w), low};
}

template <class T> INLINE One<T> value_of(const Scalar& f, One<T> c) {
    switch (f.kind) {
        case SQRT: return root(c);
        case INVERSE_SQRT: return T(1) / root(c);
        case POWER: return bounded(power_of<T>(c, f.alpha));
        case LOG: {
            const One<T> one = all<T, 1>(1), up = log_ratio<T>(larger(c, one), one), down = log_ratio<T>(one, smaller(c, one));
            return select(less(c, one), -down, up) + (c - c);
        }
        default: return bounded(exp_of<T>(c)) + (c - c);
    }
}

// Whether one of ascending eigenvalues may lie outside the domain; linalg/elementary.py says which do.
template <class T> INLINE bool is_outside(const Scalar& f, const One<T>* w, int n, One<T> tolerance) {
    if (f.kind == EXP) return any(less(all<T, 1>(T(sizeof(T) == 4 ? 85 : 700)), w[n - 1]));
    if (f.kind == GIVEN_F) return true;  // nothing is known of its domain
    const bool zero_too = f.kind == INVERSE_SQRT || f.kind == LOG || (f.kind == POWER && f.alpha < 0);
    return zero_too ? any(at_most(w[0], tolerance)) : any(less(w[0], zero<T, 1>()));
}

// in: V, w, f(w) or null. out: V diag(f(w)) V^T, and an int64 that the number of eigenvalues that are zero to rounding is
// added to, or null.
template <class T, int N> APART int function_value(const Call& call, int64 first, int64 last) {
    typedef One<T> Q;
    const int n = N ? N : call.n, entries = n * n;
    const T *V = (const T*)call.in[0], *w = (const T*)call.in[1], *given = (const T*)call.in[2];
    const Scalar f(call);
    const Memory memory((size_t)3 * entries + n);
    if (!memory) return NO_MEMORY;
    Q *W = memory.as<Q>(), *Y = W + entries, *out = Y + entries, *l = out + entries;
    const Q floor = all<T, 1>(T(f.floor));
    int64 count = 0;
    int status = 0;
    for (int64 at = first; at < last; at += LANES<T>) {
        read_matrix<T>(V, n, !(call.layout & 1), at, last, W);
        if (at + LANES<T> < last) ask_for<T>(V, entries, at + LANES<T>, last);
        read_numbers<T>(f.kind == GIVEN_F ? given : w, n, at, last, l);
        const Q tolerance = zero_tolerance<T>(f, l, n);
        if (is_outside<T>(f, l, n, tolerance)) status |= OUTSIDE;
        for (int k = 0; k < n; ++k) {
            if (call.out[1]) {
                T seen[LANES<T>], border[LANES<T>];
                memcpy(seen, &l[k], sizeof seen);
                memcpy(border, &tolerance, sizeof border);
                for (int i = 0; i < place<T>(at, last, 0).filled; ++i) count += seen[i] <= border[i];
            }
            const Q y = f.kind == GIVEN_F ? l[k] : value_of<T>(f, clamp<T>(f, l[k], tolerance, floor).at);
            if (f.kind == POWER && any(at_most(all<T, 1>(Real<T>::largest), size(y)))) status |= OUTSIDE;
            for (int i = 0; i < n; ++i) Y[k * n + i] = y * W[k * n + i];
        }
        product<T, 1, N, AT_B, true>(n, W, Y, out);
        for (int i = 0; i < n; ++i)
            for (int j = 0; j <= i; ++j) out[i * n + j] = out[j * n + i] = bounded(out[i * n + j]);
        write_numbers<T>((T*)call.out[0], entries, at, last, out);
    }
    if (count) __atomic_fetch_add((int64*)call.out[1], count, __ATOMIC_RELAXED);
    return status;
}

// What an eigenvalue brings to F: where it stands, and a number of it, by the function: its root, its power or e^l.
template <class T> struct Entry { One<T> at, number; Mask<T, 1> clamped; };

template <class T> INLINE One<T> difference(const Scalar& f, const Entry<T>& x, const Entry<T>& y) {
    const One<T> a = larger(x.at, y.at), b = smaller(x.at, y.at), gap = a - b, one = all<T, 1>(1), none = zero<T, 1>();
    const Mask<T, 1> tie = equal(gap, T(0));
    const One<T> safe = select(tie, one, gap);
    switch (f.kind) {
        case SQRT: {
            const One<T> sum = x.number + y.number;
            return select(equal(sum, T(0)), none, one / sum);
        }
        case INVERSE_SQRT: return -(one / (x.number * y.number * (x.number + y.number)));
        case POWER: {
            const T alpha = T(f.alpha);
            const Mask<T, 1> x_above = less(y.at, x.at);
            const One<T> base = alpha > 0 ? a : b, t = log_ratio<T>(a, b);
            const One<T> power = (alpha > 0) ? select(x_above, x.number, y.number) : select(x_above, y.number, x.number);
            const One<T> change = alpha > 0 ? -exp_less_one<T>(-alpha * t) : exp_less_one<T>(alpha * t);
            const One<T> found = power * select(tie, all<T, 1>(alpha), change / (safe / base));
            return alpha == 0 ? none : select(less(none, base), found, all<T, 1>(alpha == 1 ? T(1) : T(0)));
        }
        case LOG: return select(tie, one / b, log_ratio<T>(a, b) / safe);
        default: return larger(x.number, y.number) * select(tie, one, -exp_less_one<T>(-gap) / safe);
    }
}

// What brings differences of f to size 1: eigenvalues times 2^-k, or less `shift`, give differences times 2^-whole / rest.
template <class T> struct Scaling { Exponents<T, 1> k, whole; One<T> shift, rest; };

template <class T> INLINE Scaling<T> scaling(const Scalar& f, const One<T>* w, int n, One<T> floor) {
    const One<T> none = zero<T, 1>(), one = all<T, 1>(1), tolerance = zero_tolerance<T>(f, w, n);
    const One<T> low = clamp<T>(f, w[0], tolerance, floor).at, high = clamp<T>(f, w[n - 1], tolerance, floor).at;
    const Exponents<T, 1> nothing = {};
    if (f.kind == GIVEN_F) return {nothing, nothing, none, one};
    if (f.kind == EXP) {
        const Exponential<T> e = exponential<T>(high);
        return {nothing, e.k, high, one + e.less};
    }
    const double degree = f.kind == SQRT ? 0.5 : f.kind == INVERSE_SQRT ? -0.5 : f.kind == POWER ? f.alpha : 0.0;
    constexpr int ORDINARY = sizeof(T) == 4 ? 20 : 200;  // |exponent| of eigenvalues whose powers are no trouble
    const One<T> steepest = degree < 1 ? select(less(none, low), low, high) : high;
    T from[LANES<T>], rest[LANES<T>];
    Whole<T> k[LANES<T>], whole[LANES<T>];
    memcpy(from, &steepest, sizeof from);
    for (int l = 0; l < LANES<T>; ++l) {
        int e = 0;
        if (from[l] > 0 && from[l] <= Real<T>::largest) __builtin_frexp(double(from[l]), &e);
        if (-ORDINARY <= e && e <= ORDINARY) e = 0;
        e += e & 1;  // even, for the exponents of square roots
        k[l] = e;
        double power = (degree - 1) * e;
        constexpr double FURTHEST = 2 * Real<T>::bias - 2;
        power = power > FURTHEST ? FURTHEST : power < -FURTHEST ? -FURTHEST : power;
        const double below = floor_of(power);
        whole[l] = Whole<T>(below);
        rest[l] = power == below ? T(1) : T(exp2(power - below));
    }
    Scaling<T> found = {nothing, nothing, none, one};
    memcpy(&found.k, k, sizeof k);
    memcpy(&found.whole, whole, sizeof whole);
    memcpy(&found.rest, rest, sizeof rest);
    return found;
}

// Whether differences may lose digits: of eigenvalues near the ends of the range, or that far apart.
template <class T> INLINE bool is_far(const Scalar& f, const One<T>* w, int n, One<T> floor) {
    constexpr double FURTHEST = sizeof(T) == 4 ? 0x1p110 : 0x1p300, WIDEST = sizeof(T) == 4 ? 0x1p60 : 0x1p400;
    const One<T> none = zero<T, 1>(), unit = all<T, 1>(1), tolerance = zero_tolerance<T>(f, w, n);
    const One<T> low = clamp<T>(f, w[0], tolerance, floor).at, high = clamp<T>(f, w[n - 1], tolerance, floor).at;
    if (f.kind == EXP) return any(less(unit * T(sizeof(T) == 4 ? 85 : 700), larger(size(low), size(high))));
    const One<T> small = select(less(none, low), low, high);  // a zero has no scale
    const Mask<T, 1> beyond = less(unit * T(FURTHEST), high) | less(small, unit / T(FURTHEST));
    return any((beyond | less(small * T(WIDEST), high)) & less(none, high));
}

// in: V, w, G, and F or null. out: V (F * (V^T sym(G) V)) V^T.
template <class T, int N> APART int function_derivative(const Call& call, int64 first, int64 last) {
    typedef One<T> Q;
    const int n = N ? N : call.n, entries = n * n;
    const T *V = (const T*)call.in[0], *w = (const T*)call.in[1], *given = (const T*)call.in[3], *gradient = (const T*)call.in[2];
    const Scalar f(call);
    const Memory memory((size_t)4 * entries + n + 3 * n);
    if (!memory) return NO_MEMORY;
    Q *W = memory.as<Q>(), *G = W + entries, *X = G + entries, *F = X + entries, *l = F + entries;
    Entry<T>* entry = (Entry<T>*)(l + n);
    int status = 0;
    for (int64 at = first; at < last; at += LANES<T>) {
        read_matrix<T>(V, n, !(call.layout & 1), at, last, W);  // eigenvectors in rows
        read_numbers<T>(gradient, entries, at, last, G);        // its transpose has the same symmetric part
        if (at + LANES<T> < last) {
            ask_for<T>(V, entries, at + LANES<T>, last);
            ask_for<T>(gradient, entries, at + LANES<T>, last);
        }
        if (given) {
            read_numbers<T>(given, entries, at, last, F);
            const Q steep = look_at<T>(F, entries).largest, unit = all<T, 1>(1);
            constexpr double FURTHEST = sizeof(T) == 4 ? 0x1p40 : 0x1p300;
            if (any(less(unit * T(FURTHEST), steep) | (less(steep, unit / T(FURTHEST)) & less(zero<T, 1>(), steep)))) status |= FAR;
        }
        Q broken;
        const Looked<T> slopes = look_at<T>(G, entries);
        broken = slopes.broken;
        const Exponents<T, 1> e = scale_of<T>(slopes.largest);
        const PowerOfTwo<T, 1> down = power(-e);
        for (int i = 0; i < n; ++i)
            for (int j = 0; j <= i; ++j) G[i * n + j] = G[j * n + i] = T(0.5) * (G[i * n + j] * down) + T(0.5) * (G[j * n + i] * down);
        product<T, 1, N, A_B, false>(n, W, G, X);     // V^T G
        product<T, 1, N, A_BT, true>(n, X, W, G);     // V^T G V
        PowerOfTwo<T, 1> back = power(e);
        Q rest = all<T, 1>(1);
        if (!given) {
            read_numbers<T>(w, n, at, last, l);
            const Looked<T> values = look_at<T>(l, n);
            broken += values.broken;
            const Q floor = all<T, 1>(T(f.floor));
            if (is_far<T>(f, l, n, floor)) status |= FAR;
            const Scaling<T> to_1 = scaling<T>(f, l, n, floor);
            const PowerOfTwo<T, 1> unit = power(-to_1.k);
            const Q floor_1 = f.kind == EXP ? floor - to_1.shift : bounded(floor * unit);
            for (int i = 0; i < n; ++i) l[i] = f.kind == EXP ? l[i] - to_1.shift : bounded(l[i] * unit);
            const Q tolerance = zero_tolerance<T>(f, l, n);
            for (int i = 0; i < n; ++i) {
                const Clamped<T> c = clamp<T>(f, l[i], tolerance, floor_1);
                const Q number = f.kind == SQRT || f.kind == INVERSE_SQRT ? root(c.at) : f.kind == EXP ? exp_of<T>(c.at)
                                 : f.kind == POWER ? power_of<T>(c.at, f.alpha - 1) : zero<T, 1>();
                entry[i] = {c.at, number, c.is};
            }
            back = power(e + to_1.whole);
            rest = to_1.rest;
        }
        for (int i = 0; i < n; ++i)
            for (int j = 0; j <= i; ++j) {
                Q by;
                if (given) {
                    by = F[i * n + j];
                } else {
                    const Entry<T> &a = entry[i], &b = entry[j];
                    by = difference<T>(f, a, b);
                    if (f.floored) {
                        const Mask<T, 1> one_of_them = (a.clamped | b.clamped) & !(a.clamped & b.clamped);
                        by = select(one_of_them, by * ((a.at - b.at) / select(one_of_them, l[i] - l[j], all<T, 1>(1))), by);
                    }
                    by = select(a.clamped & b.clamped, zero<T, 1>(), by);
                }
                G[i * n + j] = G[j * n + i] = by * G[i * n + j];
            }
        product<T, 1, N, A_B, false>(n, G, W, X);     // (F * E) V^T
        product<T, 1, N, AT_B, true>(n, W, X, G);     // V (F * E) V^T
        for (int i = 0; i < n; ++i)
            for (int j = 0; j <= i; ++j) {
                const Q x = rest * G[i * n + j];
                G[i * n + j] = G[j * n + i] = bounded(x * back) + (x - x) + broken;
            }
        if (any(unequal(broken, broken))) status |= NOT_FINITE;
        write_numbers<T>((T*)call.out[0], entries, at, last, G);
    }
    return status;
}

}  // namespace

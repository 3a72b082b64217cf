// Singular values of upper bidiagonal matrices by QR sweeps with implicit shifts, from the last row up; each lane its own
// matrix, as in ql.h: sweeps run over all rows that are not done in all lanes, and a lane begins anew at each exact zero.
//
// A lane whose block is singular to rounding takes a shift of zero (Demmel and Kahan): that brings out a zero at once.

#pragma once
#include "rotations.h"

namespace {

constexpr int QR_SWEEPS = 40;  // for each row, at most

// (c, s) that turns (f, g) into (r, 0), c >= 0.
PACKED void givens(Pack<T, K> f, Pack<T, K> g, Pack<T, K>& c, Pack<T, K>& s, Pack<T, K>& r) {
    const Pack<T, K> squares = f * f + g * g;
    r = with_sign(root(squares), f);
    const Mask<T, K> nothing = less(squares, Real<T>::tiny) | equal(g, T(0));
    const Pack<T, K> inverse = all<T, K>(1) / r;
    c = select(nothing, all<T, K>(1), f * inverse);
    s = select(nothing, zero<T, K>(), g * inverse);
    r = select(nothing, f, r);
}

// The 2 x 2 block at the end of the first part that is not done, as it was last seen, and the least and largest diagonal
// entries of that part.
template <class T, int K> struct Part { Pack<T, K> above, below, between, least, largest, running_least, running_largest; };
PACKED Part<T, K> no_part() {
    const Pack<T, K> none = zero<T, K>(), far = all<T, K>(4);  // beyond all entries of a matrix of size 1, or no matter
    return {none, none, all<T, K>(1), far, none, far, none};
}

// e between a and b, or 0 where it is zero to rounding: there the part ends and another one begins.
PACKED Pack<T, K> seen_in(Pack<T, K> e, Pack<T, K> a, Pack<T, K> b, Part<T, K>& part) {
    constexpr T eps = Real<T>::eps, least = eps / 1024;
    const Pack<T, K> size_a = size(a), size_b = size(b);
    const Mask<T, K> large = less(eps * (size_a + size_b) + least, size(e));
    e = select(large, e, zero<T, K>());
    part.running_least = smaller(part.running_least, size_b);
    part.running_largest = larger(part.running_largest, size_b);
    part.above = select(large, a, part.above);
    part.below = select(large, b, part.below);
    part.between = select(large, e, part.between);
    const Pack<T, K> low = smaller(part.running_least, size_a), high = larger(part.running_largest, size_a);
    part.least = select(large, low, part.least);
    part.largest = select(large, high, part.largest);
    part.running_least = select(large, low, all<T, K>(4));
    part.running_largest = select(large, high, zero<T, K>());
    return e;
}

// One sweep over rows n - 1, ..., low. The rotations of rows of P^T go to `left`, those of Q^T to `right`.
template <class T, int K> APART void qr_sweep(int n, Pack<T, K>* d, Pack<T, K>* e, Rotation<T, K>* left, Rotation<T, K>* right,
                                              int low, Part<T, K>& part) {
    typedef Pack<T, K> Q;
    constexpr T UP = sizeof(T) == 4 ? T(1099511627776.0) : T(2.5822498780869086e120);  // products must not underflow
    const Q one = all<T, K>(1), none = zero<T, K>();
    const Mask<T, K> singular = at_most(part.least, T(4) * Real<T>::eps * part.largest);
    // The smaller singular value of the block (a, e; 0, b): 2 a b / (((a + b)^2 + e^2)^(1/2) + ((a - b)^2 + e^2)^(1/2)).
    const Q a = size(part.above), b = size(part.below), sum = a + b, gap = a - b, square = part.between * part.between;
    const Q over = root(sum * sum + square) + root(gap * gap + square);
    const Q shift = select(singular, none, T(2) * a * b / select(equal(over, T(0)), one, over));
    part = no_part<T, K>();
    // What the first rotation of a part annihilates: of B^T B - shift^2, divided by what cancels; with no shift, of B.
    const auto start = [&](Q diagonal, Q beside, Q& f, Q& g) {
        const Q s = size(diagonal);
        f = select(singular, diagonal, (s - shift) * (s + shift) * UP);
        g = select(singular, beside, diagonal * beside * UP);
    };
    Q diagonal = d[n - 1], beside = e[n - 2], f, g, before = diagonal;
    start(diagonal, beside, f, g);
    Mask<T, K> starts_below = less(one, none);
    for (int i = n - 1; i > low; --i) {
        Q above = d[i - 1], c, s, r;
        const Q entry = beside;
        const Mask<T, K> starts = equal(e[i - 1], T(0));
        givens<T, K>(f, g, c, s, r);
        const Q next = r;
        left[i - 1] = {s / (one + c), s};
        f = c * diagonal + s * entry;
        const Q bulge = c * entry - s * diagonal;
        g = s * above;
        above = c * above;
        givens<T, K>(f, g, c, s, r);
        right[i - 1] = {s / (one + c), s};
        d[i] = r;
        const Q found = r;
        f = c * bulge + s * above;
        const Q rest = c * above - s * bulge;
        if (i < n - 1) e[i] = seen_in<T, K>(select(starts_below, none, next), found, before, part);
        diagonal = select(starts, d[i - 1], rest);
        if (i - 1 > low) {
            const Q further = e[i - 2];
            Q anew_f, anew_g;
            start(diagonal, further, anew_f, anew_g);
            g = select(starts, anew_g, s * further);
            beside = select(starts, further, c * further);
            f = select(starts, anew_f, f);
        }
        starts_below = starts;
        before = found;
    }
    d[low] = diagonal;
    e[low] = seen_in<T, K>(select(starts_below, none, f), diagonal, before, part);
}

// d becomes the singular values with signs; rows of U and V turn with them. What has not converged has e != 0.
PACKED void make_diagonal(int n, Pack<T, K>* d, Pack<T, K>* e, Pack<T, K>* U, Pack<T, K>* V, Rotation<T, K>* turns) {
    Rotation<T, K>*u = turns, *then_u = u + n, *v = then_u + n, *then_v = v + n;
    const Pack<T, K> none = zero<T, K>();
    Part<T, K> part = no_part<T, K>();
    for (int j = n - 2; j >= 0; --j) e[j] = seen_in<T, K>(e[j], d[j], d[j + 1], part);
    for (int low = 0, sweeps = 0; sweeps < QR_SWEEPS * n;) {
        while (low < n - 1 && !any(unequal(e[low], T(0)))) ++low;
        if (low >= n - 1) return;
        qr_sweep<T, K>(n, d, e, u, v, low, part);
        int from = low;
        for (; from < n - 1 && !any(unequal(e[from], T(0))); ++from) then_u[from] = then_v[from] = {none, none};
        if (from < n - 1) qr_sweep<T, K>(n, d, e, then_u, then_v, from, part);
        sweeps += 2;
        turn_rows<T, K, 0>(n, U, u, then_u, low);
        turn_rows<T, K, 0>(n, V, v, then_v, low);
        low = from;
    }
}

}  // namespace

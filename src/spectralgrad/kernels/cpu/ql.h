// Eigenvalues of symmetric tridiagonal matrices by QL with implicit shifts (Wilkinson's), each lane its own matrix.
//
// Lanes converge at different times and places, yet do the same: every sweep runs from the last row up to the first one
// that is not done in all lanes. A subdiagonal entry that is zero to rounding becomes exactly 0, and a lane begins anew at
// each of those, with the identity in between. So what a lane computes does not depend on its neighbours.
//
// The sweep, from EISPACK's tql2: with the bulge f = s e_i and b = c e_i, (c, s) turns (g, f) into (r, 0), and r is the
// new e_(i+1).

#pragma once
#include "rotations.h"

namespace {

constexpr int SWEEPS = 30;  // for each row, at most; two are usual

// The 2 x 2 block that says which shift a lane takes: the first one that is not done.
template <class T, int K> struct Block { Pack<T, K> above, below, between; };

// e, or 0 where it is zero to rounding between a and b; of those that are not, the last one seen is the block.
PACKED Pack<T, K> kept(Pack<T, K> e, Pack<T, K> a, Pack<T, K> b, Block<T, K>& block) {
    constexpr T half = T(0.5) * Real<T>::eps, least = Real<T>::eps * Real<T>::eps;  // the matrix is of size 1
    const Mask<T, K> large = less(half * (size(a) + size(b)) + least, size(e));
    e = select(large, e, zero<T, K>());
    block.above = select(large, a, block.above);
    block.below = select(large, b, block.below);
    block.between = select(large, e, block.between);
    return e;
}

PACKED Pack<T, K> shift(const Block<T, K>& of) {
    const Pack<T, K> h = (of.below - of.above) / (of.between + of.between);
    return of.above - of.between / (h + with_sign(root(h * h + T(1)), h));
}

template <class T, int K, bool VECTORS> APART void sweep(int n, Pack<T, K>* d, Pack<T, K>* e, Rotation<T, K>* turns, int low,
                                                         Block<T, K>& block) {
    typedef Pack<T, K> Q;
    const Q one = all<T, K>(1), none = zero<T, K>(), moved = shift<T, K>(block);
    block = {none, none, one};
    Q g = d[n - 1] - moved, s = one, c = one, p = none, below = d[n - 1], before = below;
    Mask<T, K> starts_below;
    for (int i = n - 2; i >= low; --i) {
        const Q ei = e[i], di = d[i], f = s * ei, b = c * ei;
        const Mask<T, K> starts = equal(ei, T(0));
        const Q squares = f * f + g * g, r = with_sign(root(squares), g), inverse = one / r;
        const Mask<T, K> nothing = less(squares, Real<T>::tiny);
        s = select(nothing, none, f * inverse);
        c = select(nothing, one, g * inverse);  // not negative, as r has the sign of g
        const Q left = below - p, q = (di - left) * s + (c + c) * b;
        p = s * q;
        const Q found = left + p;
        d[i + 1] = found;
        if (VECTORS) turns[i] = {s / (one + c), s};
        if (i < n - 2) e[i + 1] = kept<T, K>(select(starts_below, none, r), found, before, block);
        g = select(starts, di - moved, c * q - b);
        s = select(starts, one, s);
        c = select(starts, one, c);
        starts_below = starts;
        before = found;
        below = di;
    }
    const Q found = below - p;
    d[low] = found;
    e[low] = kept<T, K>(select(starts_below, none, g), found, before, block);
}

// Memory that the next tile reads and this one writes, asked for while sweeps compute.
struct Ahead {
    const char *in, *in_end;
    char *out, *out_end;
    int lines;  // a sweep
};
INLINE void fetch(Ahead& ahead) {
    constexpr int LINE = 64;
    for (int i = 0; i < ahead.lines; ++i) {
        if (ahead.in < ahead.in_end) { __builtin_prefetch(ahead.in, 0, 2); ahead.in += LINE; }
        if (ahead.out < ahead.out_end) { __builtin_prefetch(ahead.out, 1, 2); ahead.out += LINE; }
    }
}

// d becomes the eigenvalues; the rows of W, unless VECTORS is false, turn with them. What has not converged has e != 0.
template <class T, int K, int N, bool VECTORS> INLINE void diagonalise(int given_n, Pack<T, K>* d, Pack<T, K>* e,
                                                                       Pack<T, K>* W, Rotation<T, K>* turns, Ahead ahead) {
    const int n = N ? N : given_n;
    Rotation<T, K>*first = turns, *second = turns + n;
    const Pack<T, K> none = zero<T, K>();
    Block<T, K> block = {none, none, all<T, K>(1)};
    for (int j = n - 2; j >= 0; --j) e[j] = kept<T, K>(e[j], d[j], d[j + 1], block);
    for (int low = 0, sweeps = 0; sweeps < SWEEPS * n;) {
        while (low < n - 1 && !any(unequal(e[low], T(0)))) ++low;
        if (low >= n - 1) return;
        if (VECTORS) fetch(ahead);
        sweep<T, K, VECTORS>(n, d, e, first, low, block);
        int from = low;
        for (; from < n - 1 && !any(unequal(e[from], T(0))); ++from)
            if (VECTORS) second[from] = {none, none};
        if (from < n - 1) sweep<T, K, VECTORS>(n, d, e, second, from, block);
        if (VECTORS) turn_rows<T, K, N>(n, W, first, second, low);
        sweeps += 2;
        low = from;
    }
}

}  // namespace

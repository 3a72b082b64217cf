// Symmetric matrices on their way into lanes and eigenpairs on their way out.

#pragma once
#include "householder.h"
#include "table.h"
#include "tile.h"

namespace {

// A tile that has been read: the matrices are 2^e times what stands there, and `broken` is 0, or NaN for those with NaN or
// Inf in them.
template <class T, int K> struct Tile { Exponents<T, K> e; Pack<T, K> broken; int status; };

// The lower triangles at size 1 of the symmetric parts of matrices first, ..., last - 1, the diagonal included. `stage`
// holds n * n vectors, or n where a row fills one.
template <class T, int K, int N> INLINE Tile<T, K> read_symmetric(int given_n, int ld, const T* M, int64 first, int64 last,
                                                                  Pack<T, K>* A, Vector<T>* stage) {
    typedef Pack<T, K> Q;
    const int n = N ? N : given_n;
    const int64 apart = (int64)n * n;
    for (int k = 0; k < K; ++k) {
        const Place at = place<T>(first, last, k);
        const T* src = M + at.at * apart;
        const int filled = at.filled ? at.filled : 1;
        if (n >= LANES<T>) {
            for (int i = 0; i < n; ++i) {
                load<T>(src + (int64)i * n, apart, n, filled, 0, stage);
                for (int j = 0; j < n; ++j) A[i * ld + j].v[k] = stage[j];
            }
        } else {
            load<T>(src, apart, n * n, filled, (last - at.at) * apart, stage);
            for (int i = 0; i < n; ++i)
                for (int j = 0; j < n; ++j) A[i * ld + j].v[k] = stage[i * n + j];
        }
    }
    Q even = zero<T, K>(), odd = even;
    Mask<T, K> differs = unequal(even, even);
    for (int i = 0; i < n; ++i)
        for (int j = 0; j <= i; ++j) {
            const Q a = A[i * ld + j], b = A[j * ld + i];
            even = larger(even, size(a));
            odd = larger(odd, size(b));
            differs = differs | unequal(a, b);
        }
    const Exponents<T, K> e = within(exponent(larger(even, odd)), Whole<T>(Real<T>::bias - 2));
    const Q scale = power_of_two(-e);
    even = odd = zero<T, K>();
    for (int i = 0; i < n; ++i)
        for (int j = 0; j <= i; ++j) {
            const Q mean = T(0.5) * (A[i * ld + j] * scale + A[j * ld + i] * scale);
            A[i * ld + j] = mean;
            (j % 2 ? odd : even) += mean * all<T, K>(T(0));
        }
    const Q broken = even + odd;
    const int status = (any(differs) ? NOT_SYMMETRIC : 0) | (any(unequal(broken, broken)) ? NOT_FINITE : 0);
    return {e, broken, status};
}

// rank[i], a whole number: how many of d come before d[i]; equal ones are in order of their index. d[i] is `apart` vectors
// from d[i - 1]. NaN, if one is, must be all of a lane.
template <class T> INLINE void ranks(const Vector<T>* d, int apart, int n, Bits<T>* rank) {
    const Vector<T> one = Vector<T>{} + T(1), none = {};
    Vector<T>* count = (Vector<T>*)rank;
    for (int i = 0; i < n; ++i) count[i] = none;
    for (int i = 1; i < n; ++i) {
        const Vector<T> x = d[i * apart];
        Vector<T> before = none;
        for (int j = 0; j < i; ++j) {
            const Answer<T> first = at_most(d[j * apart], x);
            before += select(first, one, none);
            count[j] += select(first, none, one);
        }
        count[i] += before;
    }
    for (int i = 0; i < n; ++i) rank[i] = __builtin_convertvector(count[i], Bits<T>);
}

// Row x of `count` numbers, `apart` vectors from each other, plus `broken`, goes to row rank of its matrix, which begins at
// dst and takes `matrix` numbers. To add 0 makes 0 of -0: how many idle sweeps a lane has seen must not show.
template <class T> INLINE void store_row(const Vector<T>* x, int apart, int count, Vector<T> broken, Bits<T> rank, T* dst,
                                         int64 matrix, int filled) {
    constexpr int L = LANES<T>;
    Whole<T> row[L];
    rank *= Whole<T>(count);
    memcpy(row, &rank, sizeof row);
    Vector<T> part[L];
    if (count >= L) {
        for (int c = 0;;) {
            for (int j = 0; j < L; ++j) part[j] = x[(c + j) * apart] + broken;
            transpose<T>(part);
            for (int l = 0; l < filled; ++l) write(dst + l * matrix + row[l] + c, part[l]);
            if (c + L == count) return;
            c = c + 2 * L > count ? count - L : c + L;
        }
    }
    for (int j = 0; j < L; ++j) part[j] = j < count ? x[j * apart] + broken : Vector<T>{};
    transpose<T>(part);
    for (int l = 0; l < filled; ++l) memcpy(dst + l * matrix + row[l], &part[l], count * sizeof(T));
}

}  // namespace

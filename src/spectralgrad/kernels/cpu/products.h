// Products of n x n matrices, one a lane, and matrices on their way into lanes and out.

#pragma once
#include "householder.h"
#include "memory.h"
#include "table.h"
#include "tile.h"

namespace {

enum Form { A_B, AT_B, A_BT };  // A B, A^T B, A B^T

// C = A B in one of its forms, all of n x n numbers; with LOWER only what is not above the diagonal is sure.
template <class T, int K, int N, Form FORM, bool LOWER> APART void product(int given_n, const Pack<T, K>* A, const Pack<T, K>* B,
                                                                           Pack<T, K>* C) {
    typedef Pack<T, K> Q;
    const int n = N ? N : given_n;
    const int row = FORM == AT_B ? 1 : n, along = FORM == AT_B ? n : 1, down = FORM == A_BT ? 1 : n, column = FORM == A_BT ? n : 1;
    constexpr int ROWS = (BYTES == 64 ? 4 : 2) / K > 1 ? (BYTES == 64 ? 4 : 2) / K : 1, COLUMNS = 4;  // what registers hold
    for (int i = 0; i < n;) {
        const int rows = i + ROWS <= n ? ROWS : 1;
        for (int j = 0; j < (LOWER ? i + rows : n);) {
            const Q *a = A + (size_t)i * row, *b = B + (size_t)j * column;
            if (rows == ROWS && j + COLUMNS <= n) {
                Q s[ROWS][COLUMNS];
                UNROLL for (int r = 0; r < ROWS; ++r)
                    UNROLL for (int c = 0; c < COLUMNS; ++c) s[r][c] = zero<T, K>();
                for (int k = 0; k < n; ++k) {
                    Q y[COLUMNS];
                    UNROLL for (int c = 0; c < COLUMNS; ++c) y[c] = b[(size_t)k * down + c * column];
                    UNROLL for (int r = 0; r < ROWS; ++r) {
                        const Q x = a[r * row + (size_t)k * along];
                        UNROLL for (int c = 0; c < COLUMNS; ++c) s[r][c] += x * y[c];
                    }
                }
                UNROLL for (int r = 0; r < ROWS; ++r)
                    UNROLL for (int c = 0; c < COLUMNS; ++c) C[(size_t)(i + r) * n + j + c] = s[r][c];
                j += COLUMNS;
                continue;
            }
            for (int r = 0; r < rows; ++r) {
                Q s = zero<T, K>();
                for (int k = 0; k < n; ++k) s += a[r * row + (size_t)k * along] * b[(size_t)k * down];
                C[(size_t)(i + r) * n + j] = s;
            }
            ++j;
        }
        i += rows;
    }
}

// One matrix a lane from now on: no square roots or divisions to wait for.
template <class T> using One = Pack<T, 1>;

// Matrices of `count` numbers from `first` on.
template <class T> INLINE void read_numbers(const T* src, int count, int64 first, int64 last, One<T>* dst) {
    const Place at = place<T>(first, last, 0);
    load<T>(src + at.at * count, count, count, at.filled, (last - at.at) * count, (Vector<T>*)dst);
}
template <class T> INLINE void write_numbers(T* dst, int count, int64 first, int64 last, const One<T>* src) {
    const Place at = place<T>(first, last, 0);
    store<T>(dst + at.at * count, count, count, at.filled, (last - at.at) * count, (const Vector<T>*)src);
}

// n x n matrices, as rows if `transposed` is false, else as columns.
template <class T> INLINE void read_matrix(const T* src, int n, bool transposed, int64 first, int64 last, One<T>* dst) {
    read_numbers<T>(src, n * n, first, last, dst);
    if (!transposed) return;
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < i; ++j) {
            const One<T> x = dst[i * n + j];
            dst[i * n + j] = dst[j * n + i];
            dst[j * n + i] = x;
        }
}

// The next tile's numbers, asked for while this one is computed.
template <class T> INLINE void ask_for(const T* src, int count, int64 first, int64 last) {
    const char *from = (const char*)(src + first * count), *end = (const char*)(src + (first + LANES<T> < last ? first + LANES<T> : last) * count);
    for (; from < end; from += 64) __builtin_prefetch(from, 0, 2);
}

// The largest size among numbers, and 0, or NaN if one is NaN or Inf.
template <class T> struct Looked { One<T> largest, broken; };
template <class T> INLINE Looked<T> look_at(const One<T>* x, int count) {
    One<T> even = zero<T, 1>(), odd = even, broken = even, other = even;
    int i = 0;
    for (; i + 1 < count; i += 2) {
        even = larger(even, size(x[i]));
        odd = larger(odd, size(x[i + 1]));
        broken += x[i] * zero<T, 1>();
        other += x[i + 1] * zero<T, 1>();
    }
    if (i < count) {
        even = larger(even, size(x[i]));
        broken += x[i] * zero<T, 1>();
    }
    return {larger(even, odd), broken + other};
}

template <class T> INLINE Exponents<T, 1> select_exponents(Mask<T, 1> m, Exponents<T, 1> a, Exponents<T, 1> b) {
    const One<T> found = select(m, One<T>{{(Vector<T>)a.e[0]}}, One<T>{{(Vector<T>)b.e[0]}});
    return {{(Bits<T>)found.v[0]}};
}

// The exponent that brings numbers to size 1; 0 where all are 0.
template <class T> INLINE Exponents<T, 1> scale_of(One<T> largest) {
    const Exponents<T, 1> e = exponent(largest);
    return {{e.e[0] & (Bits<T>)((Bits<T>)largest.v[0] != 0)}};
}

}  // namespace

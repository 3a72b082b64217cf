// Rotations of neighbouring rows, as QL and QR sweeps make them, applied to a tile of vectors.

#pragma once
#include "householder.h"

namespace {

// The rotation (c, s; -s, c) as three shears, t = s / (1 + c): x -= t z, z += s x, x -= t z. Three products and sums instead
// of four products and two sums; c >= 0 keeps |t| <= 1.
template <class T, int K> struct Rotation { Pack<T, K> t, s; };

PACKED void turn(Pack<T, K>& x, Pack<T, K>& z, const Rotation<T, K>& by) {
    x = x - by.t * z;
    z = z + by.s * x;
    x = x - by.t * z;
}

// Rotations i of two sweeps, from row n - 1 up to row `low`, applied to COLUMNS columns of W in one pass: the second sweep
// goes one row behind the first, and rows are read and written once.
template <class T, int K, int COLUMNS> INLINE void turn_columns(int n, int ld, Pack<T, K>* W, const Rotation<T, K>* first,
                                                               const Rotation<T, K>* second, int low) {
    typedef Pack<T, K> Q;
    Q z[COLUMNS], u[COLUMNS];
    Q* row = W + (size_t)(n - 2) * ld;
    {
        const Rotation<T, K> by = first[n - 2];
        UNROLL for (int j = 0; j < COLUMNS; ++j) {
            z[j] = row[j];
            u[j] = row[ld + j];
            turn<T, K>(z[j], u[j], by);
        }
    }
    for (int i = n - 3; i >= low; --i) {
        const Rotation<T, K> by = first[i], then = second[i + 1];
        Q *above = row - ld, *below = row + ld;
        UNROLL for (int j = 0; j < COLUMNS; ++j) {
            Q x = above[j];
            turn<T, K>(x, z[j], by);    // rows i and i + 1 of the first sweep
            turn<T, K>(z[j], u[j], then);  // rows i + 1 and i + 2 of the second
            below[j] = u[j];
            u[j] = z[j];
            z[j] = x;
        }
        row = above;
    }
    const Rotation<T, K> then = second[low];
    UNROLL for (int j = 0; j < COLUMNS; ++j) {
        turn<T, K>(z[j], u[j], then);
        row[ld + j] = u[j];
        row[j] = z[j];
    }
}

template <class T, int K, int N> APART void turn_rows(int given_n, Pack<T, K>* W, const Rotation<T, K>* first,
                                                      const Rotation<T, K>* second, int low) {
    const int n = N ? N : given_n, ld = row_length(n);
    constexpr int MANY = 8 / K;  // columns whose numbers fit into registers
    int c = 0;
    for (; c + MANY <= n; c += MANY) turn_columns<T, K, MANY>(n, ld, W + c, first, second, low);
    if (MANY > 2) for (; c + 2 <= n; c += 2) turn_columns<T, K, 2>(n, ld, W + c, first, second, low);
    for (; c < n; ++c) turn_columns<T, K, 1>(n, ld, W + c, first, second, low);
}

}  // namespace

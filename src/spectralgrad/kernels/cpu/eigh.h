// Eigenpairs of symmetric matrices from n = 4 on: to tridiagonal form by reflections, to a diagonal by QL. One matrix a
// lane.
//
// Eigenvectors are stored in rows, ascending, as they come: in memory that is V in columns, like LAPACK's.

#pragma once
#include "memory.h"
#include "ql.h"
#include "symmetric.h"

namespace {

// A tile's place in the memory of a call.
template <class T, int K> struct Room {
    Pack<T, K>*A, *d, *e, *tau, *p, *q;
    Rotation<T, K>* turns;
    Vector<T>* stage;

    static size_t vectors(int n) {
        const size_t stage = n >= LANES<T> ? n : n * n;
        return K * ((size_t)n * row_length(n) + 5 * (size_t)n + 4 * (size_t)n) + stage;
    }
    Room(const Memory& memory, int n) {
        A = memory.as<Pack<T, K>>();
        d = A + (size_t)n * row_length(n);
        e = d + n, tau = e + n, p = tau + n, q = p + n;
        turns = (Rotation<T, K>*)(q + n);
        stage = (Vector<T>*)(turns + 2 * n);
    }
};

// Rows of room.A become eigenvectors, room.d eigenvalues, both in any order, of size 1. Lanes that have not converged are
// broken.
template <class T, int K, int N, bool VECTORS> INLINE void decompose(int n, const Room<T, K>& room, Tile<T, K>& tile, Ahead ahead) {
    tridiagonalise<T, K, N>(n, room.A, room.d, room.e, room.tau, room.p, room.q);
    if (VECTORS) form<T, K, N>(n, room.A, room.tau, room.p, room.q);
    diagonalise<T, K, N, VECTORS>(n, room.d, room.e, room.A, room.turns, ahead);
    Pack<T, K> left = zero<T, K>();
    for (int i = 0; i < n - 1; ++i) left = larger(left, size(room.e[i]));
    const Mask<T, K> unfinished = less(zero<T, K>(), left);
    if (any(unfinished)) {
        tile.broken = select(unfinished, all<T, K>(__builtin_nan("")), tile.broken);
        tile.status |= NOT_CONVERGED;
    }
}

template <class T, int K, int N, bool VECTORS> APART int eigenpairs(const Call& call, int64 first, int64 last) {
    typedef Pack<T, K> Q;
    const int n = N ? N : call.n, ld = row_length(n);
    const int64 entries = (int64)n * n;
    constexpr int64 MATRICES = (int64)LANES<T> * K;
    const T* M = (const T*)call.in[0];
    T *w = (T*)call.out[0], *V = (T*)call.out[1];
    const Memory memory(Room<T, K>::vectors(n));
    if (!memory) return NO_MEMORY;
    const Room<T, K> room(memory, n);
    int status = 0;
    for (int64 at = first; at < last; at += MATRICES) {
        Tile<T, K> tile = read_symmetric<T, K, N>(n, ld, M, at, last, room.A, room.stage);
        Ahead ahead = {};
        const int64 bytes = MATRICES * entries * sizeof(T);
        if (VECTORS && bytes <= 200 << 10) {  // more would push out what the sweeps work on
            const int64 next = at + MATRICES < last ? at + MATRICES : last, end = next + MATRICES < last ? next + MATRICES : last;
            ahead = {(const char*)(M + next * entries), (const char*)(M + end * entries), (char*)(V + at * entries),
                     (char*)(V + next * entries), (int)(bytes / 64 / (n * 5 / 8)) + 1};
        }
        decompose<T, K, N, VECTORS>(n, room, tile, ahead);
        const Q scale = power_of_two(tile.e);
        for (int i = 0; i < n; ++i) room.d[i] = bounded(room.d[i] * scale) + tile.broken;
        status |= tile.status;
        Bits<T>* rank = (Bits<T>*)room.tau;
        for (int k = 0; k < K; ++k) {
            const Place place_ = place<T>(at, last, k);
            if (!place_.filled) break;
            ranks<T>((const Vector<T>*)room.d + k, K, n, rank);
            for (int i = 0; i < n; ++i) {
                Whole<T> to[LANES<T>];
                T x[LANES<T>];
                memcpy(to, &rank[i], sizeof to);
                memcpy(x, &room.d[i].v[k], sizeof x);
                for (int l = 0; l < place_.filled; ++l) w[(place_.at + l) * n + to[l]] = x[l];
                if (VECTORS) {
                    const Vector<T>* row = (const Vector<T>*)(room.A + (size_t)i * ld) + k;
                    store_row<T>(row, K, n, tile.broken.v[k], rank[i], V + place_.at * entries, entries, place_.filled);
                }
            }
        }
    }
    return status;
}

}  // namespace

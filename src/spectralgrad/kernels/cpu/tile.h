// A batch of matrices into lanes and back: a tile of LANES matrices is read in rows and transposed in registers.

#pragma once
#include "vector.h"

typedef int64_t int64;

namespace {

template <int... I> struct Indices {};
#if defined(__clang__)
template <class T, T... I> struct Collected { typedef Indices<(int)I...> type; };
template <int N> using Range = typename __make_integer_seq<Collected, int, N>::type;
#else
template <int N> struct Counted { typedef Indices<__integer_pack(N)...> type; };
template <int N> using Range = typename Counted<N>::type;
#endif

// Half of a step of the transposition: numbers whose place has the bit D change sides between a and b.
template <class V, int D, bool SECOND, int... I> INLINE V exchanged(V a, V b, Indices<I...>) {
    constexpr int n = sizeof...(I);
    return __builtin_shufflevector(a, b, (SECOND ? ((I & D) ? n + I : I + D) : ((I & D) ? n + I - D : I))...);
}

template <class T, int D = 1> INLINE void transpose(Vector<T>* x) {
    if constexpr (D < LANES<T>) {
        for (int r = 0; r < LANES<T>; ++r)
            if (!(r & D)) {
                const Vector<T> a = x[r], b = x[r + D];
                x[r] = exchanged<Vector<T>, D, false>(a, b, Range<LANES<T>>{});
                x[r + D] = exchanged<Vector<T>, D, true>(a, b, Range<LANES<T>>{});
            }
        transpose<T, 2 * D>(x);
    }
}

template <class T> INLINE Vector<T> read(const T* p) { return *(const typename Real<T>::anywhere*)p; }
template <class T> INLINE void write(T* p, Vector<T> x) { *(typename Real<T>::anywhere*)p = x; }

// Of matrices shorter than a vector: how many may be moved as vectors, which run on into what follows them.
template <class T> INLINE int in_vectors(int64 apart, int count, int filled, int64 room) {
    constexpr int L = LANES<T>;
    return filled < L ? 0 : room >= (L - 1) * apart + L ? L : L - 1 - (L - 1) / count;
}

// dst[e] becomes number e of each of `filled` matrices of `count` numbers that lie `apart` from each other; lanes that are
// left over repeat the last one. Reads may run on to src + room, where the caller's matrices end.
template <class T> INLINE void load(const T* src, int64 apart, int count, int filled, int64 room, Vector<T>* dst) {
    constexpr int L = LANES<T>;
    Vector<T> x[L];
    if (count >= L) {
        const T* from[L];
        for (int l = 0; l < L; ++l) from[l] = src + (l < filled ? l : filled - 1) * apart;
        for (int e = 0;;) {
            for (int l = 0; l < L; ++l) x[l] = read(from[l] + e);
            transpose<T>(x);
            for (int j = 0; j < L; ++j) dst[e + j] = x[j];
            if (e + L == count) break;
            e = e + 2 * L > count ? count - L : e + L;  // the last ones overlap
        }
        return;
    }
    const int whole = in_vectors<T>(apart, count, filled, room);
    for (int l = 0; l < whole; ++l) x[l] = read(src + l * apart);
    T part[L] = {};
    for (int l = whole; l < L; ++l) {
        memcpy(part, src + (l < filled ? l : filled - 1) * apart, count * sizeof(T));
        x[l] = read((const T*)part);
    }
    transpose<T>(x);
    for (int j = 0; j < count; ++j) dst[j] = x[j];
}

// The other way. Short matrices overlap as they are written: in order, so that each is whole in the end. What a write spoils
// up to dst + room the caller writes later.
template <class T> INLINE void store(T* dst, int64 apart, int count, int filled, int64 room, const Vector<T>* src) {
    constexpr int L = LANES<T>;
    Vector<T> x[L];
    if (count >= L) {
        for (int e = 0;;) {
            for (int j = 0; j < L; ++j) x[j] = src[e + j];
            transpose<T>(x);
            for (int l = 0; l < filled; ++l) write(dst + l * apart + e, x[l]);
            if (e + L == count) break;
            e = e + 2 * L > count ? count - L : e + L;
        }
        return;
    }
    for (int j = 0; j < L; ++j) x[j] = j < count ? src[j] : Vector<T>{};
    transpose<T>(x);
    const int whole = in_vectors<T>(apart, count, filled, room);
    for (int l = 0; l < whole; ++l) write(dst + l * apart, x[l]);
    for (int l = whole; l < filled; ++l) {
        T part[L];
        write(part, x[l]);
        memcpy(dst + l * apart, part, count * sizeof(T));
    }
}

// Matrices `first`, first + 1, ... of a batch that ends at `last`, in the lanes of vector k of a pack.
struct Place { int64 at; int filled; };
template <class T> INLINE Place place(int64 first, int64 last, int k) {
    const int64 at = first + (int64)k * LANES<T>, left = last - at;
    if (left <= 0) return {last - 1, 0};
    return {at, left < LANES<T> ? (int)left : LANES<T>};
}

}  // namespace

// Logarithm and exponential of every lane, as divided differences need them: to a few eps, also where they are near 0.

#pragma once
#include "products.h"

extern "C" {
double pow(double, double);
double exp2(double);
double floor(double);
}

namespace {

inline double floor_of(double x) { return floor(x); }

template <class T> struct Logarithm;
template <> struct Logarithm<float> {
    static constexpr float two = 0.693359375f, two_rest = -2.12194440e-4f, inverse = 1.44269504f, shift = 12582912.0f, far = 150;
    static constexpr int terms = 6, powers = 7;  // of the two series below
};
template <> struct Logarithm<double> {
    static constexpr double two = 0.69314718036912381649, two_rest = 1.90821492927058770002e-10, inverse = 1.44269504088896338700;
    static constexpr double shift = 6755399441055744.0, far = 1500;
    static constexpr int terms = 12, powers = 13;
};

template <class T> INLINE One<T> as_real(Exponents<T, 1> e) { return {{__builtin_convertvector(e.e[0], Vector<T>)}}; }

// x / 2^e(x), in [1, 2), for ordinary x > 0.
template <class T> INLINE One<T> mantissa(One<T> x) {
    const Bits<T> one = (Bits<T>)(Vector<T>{} + T(1));
    return {{(Vector<T>)(((Bits<T>)x.v[0] & ~(Real<T>::exponent | Real<T>::sign)) | one)}};
}

// log(a / b) for a >= b >= 0, right relative to itself, infinite at b = 0. With a / b = 2^k p / q and p / q within a square
// root of 2 of 1 it is k log 2 + 2 artanh z, z = (p - q) / (p + q), and p - q is exact where it is small (Sterbenz).
template <class T> INLINE One<T> log_ratio(One<T> a, One<T> b) {
    typedef Logarithm<T> L;
    constexpr T lift = T(1ull << (Real<T>::digits + 1));
    const Mask<T, 1> nothing = equal(b, T(0)), low_a = less(a, Real<T>::tiny), low_b = less(b, Real<T>::tiny);
    const One<T> none = zero<T, 1>(), more = all<T, 1>(T(Real<T>::digits + 1));
    a = select(low_a, a * lift, a);
    b = select(low_b, b * lift, b);
    One<T> p = mantissa<T>(a), q = mantissa<T>(b);
    One<T> k = as_real<T>(exponent(a) - exponent(b)) + select(low_b, more, none) - select(low_a, more, none);
    const Mask<T, 1> above = less(T(1.41421356) * q, p), below = less(T(1.41421356) * p, q);
    p = select(above, T(0.5) * p, select(below, p + p, p));
    k += select(above, all<T, 1>(1), select(below, all<T, 1>(-1), none));
    const One<T> z = (p - q) / (p + q), square = z * z;
    One<T> series = all<T, 1>(T(1) / (2 * L::terms + 1));
    UNROLL for (int i = L::terms - 1; i > 0; --i) series = series * square + T(1) / (2 * i + 1);
    const One<T> rest = z + z + (z + z) * (square * series);
    const One<T> found = k * L::two + (k * L::two_rest + rest);
    return select(nothing, select(equal(a, T(0)), none, all<T, 1>(T(__builtin_inf()))), found);
}

// e^x = 2^k (1 + less) with |log(1 + less)| at most half of log 2.
template <class T> struct Exponential { Exponents<T, 1> k; One<T> less; };
template <class T> INLINE Exponential<T> exponential(One<T> x) {
    typedef Logarithm<T> L;
    x = smaller(larger(x, all<T, 1>(-L::far)), all<T, 1>(L::far));
    const One<T> k = (x * L::inverse + L::shift) - L::shift;
    const One<T> r = (x - k * L::two) - k * L::two_rest;
    One<T> series = all<T, 1>(1);
    UNROLL for (int i = L::powers; i > 1; --i) series = series * (r * (T(1) / i)) + T(1);
    const One<T> whole = select(unequal(k, k), zero<T, 1>(), k);
    return {{{__builtin_convertvector(whole.v[0], Bits<T>)}}, r * series};
}
template <class T> INLINE One<T> exp_of(One<T> x) {
    const Exponential<T> e = exponential<T>(x);
    return (all<T, 1>(1) + e.less) * power(e.k);
}
// e^x - 1 for x <= 0.
template <class T> INLINE One<T> exp_less_one(One<T> x) {
    const Exponential<T> e = exponential<T>(x);
    const PowerOfTwo<T, 1> by = power(e.k);
    return e.less * by + (all<T, 1>(1) * by - T(1));
}

template <class T> INLINE One<T> power_of(One<T> x, double alpha) {
    T number[LANES<T>];
    memcpy(number, &x, sizeof number);
    for (int l = 0; l < LANES<T>; ++l) number[l] = T(pow(double(number[l]), alpha));
    memcpy(&x, number, sizeof number);
    return x;
}

}  // namespace

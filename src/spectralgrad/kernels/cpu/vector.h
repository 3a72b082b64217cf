// A vector holds one number of as many matrices as it has lanes. A Pack is K vectors: their operations do not wait for
// each other, which hides how long a square root or a division takes.
//
// Which instructions there are is the compiler's word: this file is compiled once for each set of them. Everything is in
// an unnamed namespace, so that the copies do not get mixed up when they are linked into one library.

#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define BYTES 64
#elif defined(__AVX2__)
#define BYTES 32
#else
#define BYTES 16
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define APART __attribute__((noinline))  // phases in one function would spill each other's registers
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

namespace {

template <class T> struct Real;
template <> struct Real<float> {
    typedef int32_t whole;
    typedef float vector __attribute__((vector_size(BYTES)));
    typedef int32_t bits __attribute__((vector_size(BYTES)));
    typedef float anywhere __attribute__((vector_size(BYTES), aligned(4), may_alias));  // in memory, at any address
    static constexpr float eps = 1.1920929e-7f, tiny = 1.1754944e-38f, largest = 3.4028235e38f;
    static constexpr int digits = 23, bias = 127;
    static constexpr whole sign = INT32_MIN, exponent = 0x7f800000;
};
template <> struct Real<double> {
    typedef int64_t whole;
    typedef double vector __attribute__((vector_size(BYTES)));
    typedef int64_t bits __attribute__((vector_size(BYTES)));
    typedef double anywhere __attribute__((vector_size(BYTES), aligned(8), may_alias));
    static constexpr double eps = 2.220446049250313e-16, tiny = 2.2250738585072014e-308, largest = 1.7976931348623157e308;
    static constexpr int digits = 52, bias = 1023;
    static constexpr whole sign = INT64_MIN, exponent = 0x7ff0000000000000LL;
};
template <class T> using Vector = typename Real<T>::vector;
template <class T> using Bits = typename Real<T>::bits;
template <class T> using Whole = typename Real<T>::whole;
template <class T> constexpr int LANES = BYTES / sizeof(T);

// What a comparison says of each lane: a register of bits with AVX-512, a vector of zeros and ones elsewhere.
#if BYTES == 64
template <class T> struct Answer;
template <> struct Answer<float> { __mmask16 is; };
template <> struct Answer<double> { __mmask8 is; };
INLINE bool any(Answer<float> a) { return a.is != 0; }
INLINE bool any(Answer<double> a) { return a.is != 0; }
#define COMPARE(name, op, code)                                                                                          \
    INLINE Answer<float> name(Vector<float> a, Vector<float> b) { return {_mm512_cmp_ps_mask((__m512)a, (__m512)b, code)}; } \
    INLINE Answer<double> name(Vector<double> a, Vector<double> b) { return {_mm512_cmp_pd_mask((__m512d)a, (__m512d)b, code)}; }
INLINE Vector<float> select(Answer<float> m, Vector<float> a, Vector<float> b) {
    return (Vector<float>)_mm512_mask_blend_ps(m.is, (__m512)b, (__m512)a);
}
INLINE Vector<double> select(Answer<double> m, Vector<double> a, Vector<double> b) {
    return (Vector<double>)_mm512_mask_blend_pd(m.is, (__m512d)b, (__m512d)a);
}
INLINE Vector<float> root(Vector<float> a) { return (Vector<float>)_mm512_sqrt_ps((__m512)a); }
INLINE Vector<double> root(Vector<double> a) { return (Vector<double>)_mm512_sqrt_pd((__m512d)a); }
#else
template <class T> struct Answer { Bits<T> is; };
#define COMPARE(name, op, code)                                                             \
    INLINE Answer<float> name(Vector<float> a, Vector<float> b) { return {a op b}; }        \
    INLINE Answer<double> name(Vector<double> a, Vector<double> b) { return {a op b}; }
#if BYTES == 32
INLINE bool any(Answer<float> a) { return _mm256_movemask_ps((__m256)a.is) != 0; }
INLINE bool any(Answer<double> a) { return _mm256_movemask_pd((__m256d)a.is) != 0; }
INLINE Vector<float> select(Answer<float> m, Vector<float> a, Vector<float> b) {
    return (Vector<float>)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m.is);
}
INLINE Vector<double> select(Answer<double> m, Vector<double> a, Vector<double> b) {
    return (Vector<double>)_mm256_blendv_pd((__m256d)b, (__m256d)a, (__m256d)m.is);
}
INLINE Vector<float> root(Vector<float> a) { return (Vector<float>)_mm256_sqrt_ps((__m256)a); }
INLINE Vector<double> root(Vector<double> a) { return (Vector<double>)_mm256_sqrt_pd((__m256d)a); }
#else
INLINE Vector<float> select(Answer<float> m, Vector<float> a, Vector<float> b) {
    return (Vector<float>)((m.is & (Bits<float>)a) | (~m.is & (Bits<float>)b));
}
INLINE Vector<double> select(Answer<double> m, Vector<double> a, Vector<double> b) {
    return (Vector<double>)((m.is & (Bits<double>)a) | (~m.is & (Bits<double>)b));
}
#if defined(__SSE2__)
INLINE bool any(Answer<float> a) { return _mm_movemask_ps((__m128)a.is) != 0; }
INLINE bool any(Answer<double> a) { return _mm_movemask_pd((__m128d)a.is) != 0; }
INLINE Vector<float> root(Vector<float> a) { return (Vector<float>)_mm_sqrt_ps((__m128)a); }
INLINE Vector<double> root(Vector<double> a) { return (Vector<double>)_mm_sqrt_pd((__m128d)a); }
#else
template <class T> INLINE bool any(Answer<T> a) {
    Whole<T> all = 0;
    for (int l = 0; l < LANES<T>; ++l) all |= a.is[l];
    return all != 0;
}
#if defined(__ARM_NEON) && defined(__aarch64__)
INLINE Vector<float> root(Vector<float> a) { return (Vector<float>)vsqrtq_f32((float32x4_t)a); }
INLINE Vector<double> root(Vector<double> a) { return (Vector<double>)vsqrtq_f64((float64x2_t)a); }
#else
INLINE Vector<float> root(Vector<float> a) {
    for (int l = 0; l < LANES<float>; ++l) a[l] = __builtin_sqrtf(a[l]);
    return a;
}
INLINE Vector<double> root(Vector<double> a) {
    for (int l = 0; l < LANES<double>; ++l) a[l] = __builtin_sqrt(a[l]);
    return a;
}
#endif
#endif
#endif
#endif
COMPARE(less, <, _CMP_LT_OQ)
COMPARE(at_most, <=, _CMP_LE_OQ)
COMPARE(equal, ==, _CMP_EQ_OQ)
COMPARE(unequal, !=, _CMP_NEQ_UQ)
#undef COMPARE
template <class T> INLINE Answer<T> operator&(Answer<T> a, Answer<T> b) { return {decltype(a.is)(a.is & b.is)}; }
template <class T> INLINE Answer<T> operator|(Answer<T> a, Answer<T> b) { return {decltype(a.is)(a.is | b.is)}; }
template <class T> INLINE Answer<T> operator!(Answer<T> a) { return {decltype(a.is)(~a.is)}; }

template <class T, int K> struct Pack { Vector<T> v[K]; };
template <class T, int K> struct Mask { Answer<T> m[K]; };
template <class T, int K> struct Exponents { Bits<T> e[K]; };
#define EACH for (int k_ = 0; k_ < K; ++k_)
#define PACKED template <class T, int K> INLINE

#define ARITHMETIC(op)                                                                                               \
    PACKED Pack<T, K> operator op(Pack<T, K> a, Pack<T, K> b) { EACH a.v[k_] = a.v[k_] op b.v[k_]; return a; }         \
    PACKED Pack<T, K> operator op(Pack<T, K> a, T b) { EACH a.v[k_] = a.v[k_] op b; return a; }                        \
    PACKED Pack<T, K> operator op(T a, Pack<T, K> b) { EACH b.v[k_] = a op b.v[k_]; return b; }
ARITHMETIC(+)
ARITHMETIC(-)
ARITHMETIC(/)
#undef ARITHMETIC
PACKED Pack<T, K> all(T x) { Pack<T, K> r; EACH r.v[k_] = Vector<T>{} + x; return r; }
PACKED Pack<T, K> operator-(Pack<T, K> a) { EACH a.v[k_] = -a.v[k_]; return a; }

// A product is a Pack that knows its factors: a sum with it takes one rounding, where there is an instruction for that.
// Which products are fused is said here and not left to the compiler, who may choose otherwise in each copy of a loop: then
// the same matrix would have other bits in another place.
template <class T, int K> struct Product : Pack<T, K> {
    Pack<T, K> a, b;
    INLINE Product(Pack<T, K> a, Pack<T, K> b) : a(a), b(b) { EACH this->v[k_] = a.v[k_] * b.v[k_]; }
};
#if BYTES == 64
#define FUSED(name, op)                                                                                              \
    INLINE Vector<float> name(Vector<float> a, Vector<float> b, Vector<float> c) { return (Vector<float>)_mm512_##op##_ps((__m512)a, (__m512)b, (__m512)c); } \
    INLINE Vector<double> name(Vector<double> a, Vector<double> b, Vector<double> c) { return (Vector<double>)_mm512_##op##_pd((__m512d)a, (__m512d)b, (__m512d)c); }
#elif BYTES == 32
#define FUSED(name, op)                                                                                              \
    INLINE Vector<float> name(Vector<float> a, Vector<float> b, Vector<float> c) { return (Vector<float>)_mm256_##op##_ps((__m256)a, (__m256)b, (__m256)c); } \
    INLINE Vector<double> name(Vector<double> a, Vector<double> b, Vector<double> c) { return (Vector<double>)_mm256_##op##_pd((__m256d)a, (__m256d)b, (__m256d)c); }
#elif defined(__ARM_NEON) && defined(__aarch64__)
INLINE Vector<float> neon(Vector<float> a, Vector<float> b, Vector<float> c) { return (Vector<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE Vector<double> neon(Vector<double> a, Vector<double> b, Vector<double> c) { return (Vector<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b); }
#define FUSED(name, op)                                                                                              \
    INLINE Vector<float> name(Vector<float> a, Vector<float> b, Vector<float> c) { return FUSED_##name(a, b, c); }         \
    INLINE Vector<double> name(Vector<double> a, Vector<double> b, Vector<double> c) { return FUSED_##name(a, b, c); }
#define FUSED_plus(a, b, c) neon(a, b, c)
#define FUSED_minus(a, b, c) neon(a, b, -c)
#define FUSED_from(a, b, c) neon(-a, b, c)
#else
#define FUSED(name, op)                                                                                              \
    INLINE Vector<float> name(Vector<float> a, Vector<float> b, Vector<float> c) { return FUSED_##name(a * b, c); }        \
    INLINE Vector<double> name(Vector<double> a, Vector<double> b, Vector<double> c) { return FUSED_##name(a * b, c); }
#define FUSED_plus(p, c) p + c
#define FUSED_minus(p, c) p - c
#define FUSED_from(p, c) c - p
#endif
FUSED(plus, fmadd)   // a b + c
FUSED(minus, fmsub)  // a b - c
FUSED(from, fnmadd)  // c - a b
#undef FUSED
PACKED Product<T, K> operator*(Pack<T, K> a, Pack<T, K> b) { return {a, b}; }
PACKED Product<T, K> operator*(Pack<T, K> a, T b) { return {a, all<T, K>(b)}; }
PACKED Product<T, K> operator*(T a, Pack<T, K> b) { return {all<T, K>(a), b}; }
PACKED Product<T, K> operator-(Product<T, K> p) { return {-p.a, p.b}; }
PACKED Pack<T, K> operator+(Product<T, K> p, Pack<T, K> c) { EACH c.v[k_] = plus(p.a.v[k_], p.b.v[k_], c.v[k_]); return c; }
PACKED Pack<T, K> operator+(Pack<T, K> c, Product<T, K> p) { return p + c; }
PACKED Pack<T, K> operator+(Product<T, K> p, Product<T, K> q) { return p + static_cast<Pack<T, K>>(q); }
PACKED Pack<T, K> operator+(Product<T, K> p, T c) { return p + all<T, K>(c); }
PACKED Pack<T, K> operator-(Product<T, K> p, Pack<T, K> c) { EACH c.v[k_] = minus(p.a.v[k_], p.b.v[k_], c.v[k_]); return c; }
PACKED Pack<T, K> operator-(Pack<T, K> c, Product<T, K> p) { EACH c.v[k_] = from(p.a.v[k_], p.b.v[k_], c.v[k_]); return c; }
PACKED Pack<T, K> operator-(Product<T, K> p, Product<T, K> q) { return p - static_cast<Pack<T, K>>(q); }
PACKED Pack<T, K> operator-(Product<T, K> p, T c) { return p - all<T, K>(c); }
PACKED Pack<T, K>& operator+=(Pack<T, K>& a, Pack<T, K> b) { return a = a + b; }
PACKED Pack<T, K>& operator-=(Pack<T, K>& a, Pack<T, K> b) { return a = a - b; }
PACKED Pack<T, K>& operator*=(Pack<T, K>& a, Pack<T, K> b) { return a = a * b; }
PACKED Pack<T, K>& operator+=(Pack<T, K>& a, Product<T, K> p) { return a = a + p; }
PACKED Pack<T, K>& operator-=(Pack<T, K>& a, Product<T, K> p) { return a = a - p; }

#define COMPARED(name)                                                                                              \
    PACKED Mask<T, K> name(Pack<T, K> a, Pack<T, K> b) { Mask<T, K> r; EACH r.m[k_] = name(a.v[k_], b.v[k_]); return r; } \
    PACKED Mask<T, K> name(Pack<T, K> a, T b) { Mask<T, K> r; EACH r.m[k_] = name(a.v[k_], Vector<T>{} + b); return r; }
COMPARED(less)
COMPARED(at_most)
COMPARED(equal)
COMPARED(unequal)
#undef COMPARED
PACKED Mask<T, K> operator&(Mask<T, K> a, Mask<T, K> b) { EACH a.m[k_] = a.m[k_] & b.m[k_]; return a; }
PACKED Mask<T, K> operator|(Mask<T, K> a, Mask<T, K> b) { EACH a.m[k_] = a.m[k_] | b.m[k_]; return a; }
PACKED Mask<T, K> operator!(Mask<T, K> a) { EACH a.m[k_] = !a.m[k_]; return a; }
PACKED bool any(Mask<T, K> a) { bool found = false; EACH found |= any(a.m[k_]); return found; }
PACKED Pack<T, K> select(Mask<T, K> m, Pack<T, K> a, Pack<T, K> b) { EACH a.v[k_] = select(m.m[k_], a.v[k_], b.v[k_]); return a; }

PACKED Pack<T, K> root(Pack<T, K> a) { EACH a.v[k_] = root(a.v[k_]); return a; }
PACKED Pack<T, K> size(Pack<T, K> a) { EACH a.v[k_] = (Vector<T>)((Bits<T>)a.v[k_] & ~Real<T>::sign); return a; }
// |a| with the sign of s, and a with the sign of s times its own: bits, so that the sign of a zero counts.
PACKED Pack<T, K> with_sign(Pack<T, K> a, Pack<T, K> s) {
    EACH a.v[k_] = (Vector<T>)(((Bits<T>)a.v[k_] & ~Real<T>::sign) | ((Bits<T>)s.v[k_] & Real<T>::sign));
    return a;
}
PACKED Pack<T, K> times_sign(Pack<T, K> a, Pack<T, K> s) {
    EACH a.v[k_] = (Vector<T>)((Bits<T>)a.v[k_] ^ ((Bits<T>)s.v[k_] & Real<T>::sign));
    return a;
}
PACKED Pack<T, K> larger(Pack<T, K> a, Pack<T, K> b) { return select(less(a, b), b, a); }   // NaN in b is passed over
PACKED Pack<T, K> smaller(Pack<T, K> a, Pack<T, K> b) { return select(less(b, a), b, a); }
// What overflowed becomes the largest number; NaN stays.
PACKED Pack<T, K> bounded(Pack<T, K> x) {
    const Pack<T, K> top = all<T, K>(Real<T>::largest);
    return select(less(top, x), top, select(less(x, -top), -top, x));
}

// e with 2^e <= x < 2^(e + 1) for ordinary x > 0. Zeros and numbers below the ordinary ones give one less than the least
// exponent, NaN and Inf one more than the largest.
PACKED Exponents<T, K> exponent(Pack<T, K> x) {
    Exponents<T, K> r;
    EACH r.e[k_] = (((Bits<T>)x.v[k_] & Real<T>::exponent) >> Real<T>::digits) - Real<T>::bias;
    return r;
}
PACKED Exponents<T, K> operator+(Exponents<T, K> a, Exponents<T, K> b) { EACH a.e[k_] = a.e[k_] + b.e[k_]; return a; }
PACKED Exponents<T, K> operator-(Exponents<T, K> a, Exponents<T, K> b) { EACH a.e[k_] = a.e[k_] - b.e[k_]; return a; }
PACKED Exponents<T, K> operator-(Exponents<T, K> a) { EACH a.e[k_] = -a.e[k_]; return a; }
PACKED Exponents<T, K> larger(Exponents<T, K> a, Exponents<T, K> b) {
    EACH { Bits<T> more = a.e[k_] < b.e[k_]; a.e[k_] = (more & b.e[k_]) | (~more & a.e[k_]); }
    return a;
}
PACKED Exponents<T, K> within(Exponents<T, K> a, Whole<T> limit) {
    EACH {
        Bits<T> high = a.e[k_] > limit, low = a.e[k_] < -limit;
        a.e[k_] = (high & limit) | (low & -limit) | (~(high | low) & a.e[k_]);
    }
    return a;
}
PACKED Pack<T, K> power_of_two(Exponents<T, K> e) {  // of ordinary size
    Pack<T, K> r;
    EACH r.v[k_] = (Vector<T>)((e.e[k_] + Real<T>::bias) << Real<T>::digits);
    return r;
}
// 2^e as two factors: as one it may be out of range.
template <class T, int K> struct PowerOfTwo { Pack<T, K> first, second; };
PACKED PowerOfTwo<T, K> power(Exponents<T, K> e) {
    e = within(e, Whole<T>(2 * Real<T>::bias - 2));
    Exponents<T, K> half, rest;
    EACH { half.e[k_] = e.e[k_] >> 1; rest.e[k_] = e.e[k_] - half.e[k_]; }
    return {power_of_two<T, K>(half), power_of_two<T, K>(rest)};
}
PACKED Pack<T, K> operator*(Pack<T, K> x, PowerOfTwo<T, K> power) { return x * power.first * power.second; }

}  // namespace

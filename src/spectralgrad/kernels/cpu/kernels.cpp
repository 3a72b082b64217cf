// All kernels for one instruction set, the one that the compiler is told of; LEVEL is its name.

#include "eigh.h"
#include "functions.h"
#include "polar.h"
#include "pullback.h"
#include "small_eigh.h"
#include "small_svd.h"
#include "svd.h"

namespace {

template <class T, bool VECTORS> int any_eigenpairs(const Call& call, int64 first, int64 last) {
    switch (call.n) {
        case 1: return small_eigenpairs<T, 2, 1, VECTORS>(call, first, last);
        case 2: return small_eigenpairs<T, 2, 2, VECTORS>(call, first, last);
        case 3: return small_eigenpairs<T, 3, 3, VECTORS>(call, first, last);
        case 4: return eigenpairs<T, 2, 4, VECTORS>(call, first, last);
        default: return eigenpairs<T, 2, 0, VECTORS>(call, first, last);
    }
}

#define BY_SIZE(name, kernel)                                                                \
    template <class T> int name(const Call& call, int64 first, int64 last) {                 \
        switch (call.n) {                                                                    \
            case 3: return kernel<T, 3>(call, first, last);                                  \
            case 4: return kernel<T, 4>(call, first, last);                                  \
            default: return kernel<T, 0>(call, first, last);                                 \
        }                                                                                    \
    }
BY_SIZE(any_pullback, pull_back)
BY_SIZE(any_value, function_value)
BY_SIZE(any_derivative, function_derivative)
BY_SIZE(any_polar_derivative, polar_derivative)

template <class T> int any_triplets(const Call& call, int64 first, int64 last) {
    switch (call.m == call.n ? call.n : 0) {
        case 2: return triplets_of_small<T, 2, 2>(call, first, last);
        case 3: return triplets_of_small<T, 2, 3>(call, first, last);
        case 4: return triplets_of_small<T, 2, 4>(call, first, last);
        default: return triplets<T, 2>(call, first, last);
    }
}

template <class T> int any_polar(const Call& call, int64 first, int64 last) {
    return call.n == 2 ? polar_factors<T, 2, 2>(call, first, last) : polar_factors<T, 2, 3>(call, first, last);
}

}  // namespace

#define NAMED(level) spectralgrad_##level
#define TABLE(level) NAMED(level)
extern "C" const Table TABLE(LEVEL) = {
    BYTES,
    {
        {any_eigenpairs<float, true>, any_eigenpairs<double, true>},
        {any_eigenpairs<float, false>, any_eigenpairs<double, false>},
        {any_pullback<float>, any_pullback<double>},
        {any_value<float>, any_value<double>},
        {any_derivative<float>, any_derivative<double>},
        {any_triplets<float>, any_triplets<double>},
        {any_polar<float>, any_polar<double>},
        {any_polar_derivative<float>, any_polar_derivative<double>},
    },
};

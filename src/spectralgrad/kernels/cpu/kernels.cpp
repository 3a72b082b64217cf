// All kernels for one instruction set, the one that the compiler is told of; LEVEL is its name.

#include "eigh.h"
#include "small_eigh.h"

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

}  // namespace

#define NAMED(level) spectralgrad_##level
#define TABLE(level) NAMED(level)
extern "C" const Table TABLE(LEVEL) = {
    BYTES,
    {
        {any_eigenpairs<float, true>, any_eigenpairs<double, true>},
        {any_eigenpairs<float, false>, any_eigenpairs<double, false>},
    },
};

// Powers of two that keep a kernel's numbers in range: everything at scale 1, and back last.
//
// Compile-time: REAL (float or double), LARGEST (the largest number). memory.cuh stands before this file.

constexpr int NO_EXPONENT = -100000;
constexpr int FURTHEST = sizeof(real) == 4 ? 252 : 2044;  // 2^k in two steps that are both in range

// Overflow cut to the largest number; NaN stays.
__device__ __forceinline__ real bounded(real x) { return x != x ? x : fmin(fmax(x, -real(LARGEST)), real(LARGEST)); }

// 2^k as two factors: as one it may be out of range.
struct PowerOfTwo {
    real first, second;
    __device__ __forceinline__ PowerOfTwo(int k) {
        k = max(-FURTHEST, min(FURTHEST, k));
        first = ldexp(real(1), k / 2);
        second = ldexp(real(1), k - k / 2);
    }
};
__device__ __forceinline__ real operator*(real x, PowerOfTwo power) { return x * power.first * power.second; }

// *exponent, which all threads of a block share, becomes at least k + more for a k with |x| < 2^k for all numbers of x, and near
// it. Zeros have none. Returns whether this thread met NaN or Inf; a barrier must follow. All threads of a warp come here.
__device__ __forceinline__ bool raise(int* exponent, const real* x, int count, int more, int threads) {
    real largest = 0;
    bool broken = false;
    #pragma unroll 4
    for (int k = threadIdx.x; k < count; k += threads) {
        const real y = fabs(x[k]);
        broken = broken || !(y <= real(LARGEST));
        largest = fmax(largest, y);
    }
    int own = NO_EXPONENT;
    if (largest > 0 && !broken) {
        frexp(largest, &own);
        own += more;
    }
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) own = max(own, __shfl_xor_sync(0xffffffffu, own, step));
    if (threadIdx.x % 32 == 0) atomicMax(exponent, own);
    return broken;
}

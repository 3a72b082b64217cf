// Powers of two for matrices one after the other in memory: the exponent of each, and each times its power.
//
// Compile-time: REAL (float or double), LARGEST (the largest number), LIMIT (a power of two beyond which all is 0 or the largest
// number), THREADS (of a block).

#ifndef SHARED
#define SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

typedef long long int64;
typedef REAL real;

// out[i] is k with |x| < 2^k for all `size` numbers of matrix i, and near it; 0 for zeros, NaN and Inf. One block a matrix.
extern "C" __global__ void __launch_bounds__(THREADS) exponent(const real* __restrict__ x, real* __restrict__ out, int64 size) {
    x += blockIdx.x * size;
    SHARED(shared);
    int* found = reinterpret_cast<int*>(shared);
    if (threadIdx.x == 0) *found = -(1 << 30);
    real largest = 0;
    bool broken = false;
    #pragma unroll 4
    for (int64 i = threadIdx.x; i < size; i += THREADS) {
        const real y = fabs(x[i]);
        broken = broken || !(y <= real(LARGEST));
        largest = fmax(largest, y);
    }
    broken = __syncthreads_or(broken);
    int k;
    frexp(largest, &k);
    if (largest > 0 && !broken) atomicMax(found, k);
    const bool known = __syncthreads_or(largest > 0) && !broken;
    if (threadIdx.x == 0) out[blockIdx.x] = known ? real(*found) : real(0);
}

// out = x 2^k, cut to the largest number, k[i] whole for the `size` numbers of matrix i. Where x is NaN or Inf it is NaN.
extern "C" __global__ void __launch_bounds__(THREADS)
shift(const real* __restrict__ x, const real* __restrict__ k, real* __restrict__ out, int64 size, int64 count) {
    const int64 i = (int64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const real y = x[i];
    const real power = fmin(fmax(k[i / size], real(-LIMIT)), real(LIMIT));
    const real z = fmin(fmax(ldexp(y, (int)power), -real(LARGEST)), real(LARGEST));
    out[i] = y - y == 0 ? z : y - y;
}

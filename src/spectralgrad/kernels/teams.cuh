// What one-sided Jacobi needs whatever it turns: the threads of a team, and a round-robin tournament.
//
// Expects REAL, LANES (threads that work on a row together, a power of two), TEAM (threads of a matrix).

#ifndef SHARED
#define SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
typedef long long int64;
typedef REAL real;

constexpr int VEC = 16 / sizeof(real);                        // a lane moves 16 bytes at a time
constexpr int SLOTS = TEAM / LANES;                           // meetings at a time
constexpr int WIDTH = TEAM < 32 ? TEAM : 32;                  // threads that take a row, or a column, at a time
constexpr int MAX_SWEEPS = 30;                                // rounding never needs so many; an end for certain
struct alignas(16) Chunk { real x[VEC]; };

__device__ __forceinline__ void team_sync() {
    if (TEAM <= 32) __syncwarp(); else __syncthreads();
}

// True for all threads of the team if it is for one of them. The lanes of a warp may serve several matrices.
__device__ __forceinline__ bool team_any(bool x) {
    if (TEAM > 32) return __syncthreads_or(x);
    const unsigned votes = __ballot_sync(0xffffffffu, x);
    const unsigned mine = TEAM == 32 ? 0xffffffffu : ((1u << (TEAM & 31)) - 1) << (threadIdx.x % 32 / TEAM * TEAM);
    return (votes & mine) != 0;
}

__device__ __forceinline__ real pair_sum(real x) {
    #pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// 1 / sqrt(x) to the last bit or so: the sum of squares of a rotation must be 1, or norms drift over hundreds of rounds.
__device__ __forceinline__ real inverse_root(real x) {
    const real y = rsqrt(x);
    return y * (real(1.5) - real(0.5) * x * y * y);
}

// Players p and q of table k in round r of a tournament of an even number: the last sits still, the others go round.
__device__ __forceinline__ void seats(int players, int r, int k, int& p, int& q) {
    if (k == 0) { p = r; q = players - 1; return; }
    p = r + k; if (p >= players - 1) p -= players - 1;
    q = r - k; if (q < 0) q += players - 1;
}

__device__ __forceinline__ real team_max(real x, real* scratch, int t) {
    #pragma unroll
    for (int step = (TEAM < 32 ? TEAM : 32) / 2; step > 0; step /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (TEAM <= 32) return x;
    if (t % 32 == 0) scratch[t / 32] = x;  // TEAM / 32 <= N entries
    team_sync();
    x = scratch[0];
    for (int i = 1; i < TEAM / 32; ++i) x = fmax(x, scratch[i]);
    team_sync();
    return x;
}

// True for the whole block, or warp, if it is for one of its matrices: they pass the barriers together.
__device__ __forceinline__ bool together(bool x) {
    return TEAM <= 32 ? __any_sync(0xffffffffu, x) : __syncthreads_or(x);
}

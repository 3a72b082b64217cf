// What one-sided Jacobi needs whatever it turns: threads of a team, a tournament of rows, the angle of a rotation.
//
// Expects REAL, N (rows), LANES (threads that turn a pair, a power of two), TEAM (threads of a matrix).

#ifndef SHARED
#define SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
typedef long long int64;
typedef REAL real;

constexpr int VEC = 16 / sizeof(real);                        // a lane moves 16 bytes at a time
constexpr int SLOTS = TEAM / LANES;                           // pairs in flight
constexpr bool SOME_IDLE = N / 2 % SLOTS != 0;                // in the last turn of a round some slots have no pair
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

__device__ __forceinline__ float rough_ratio(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double rough_ratio(double a, double b) { return a / b; }

// Rows p and q of round r: player N - 1 sits still, the others go round the table.
__device__ __forceinline__ void seats(int r, int k, int& p, int& q) {
    if (k == 0) { p = r; q = N - 1; return; }
    p = r + k; if (p >= N - 1) p -= N - 1;
    q = r - k; if (q < 0) q += N - 1;
}

// tan(x / 2) for t = tan(x), |t| <= 1. In single precision t / (1 + sqrt(1 + t^2)) by a polynomial in t^2, good to 4e-7: an
// angle need not be exact, and this is the longest chain of a round.
__device__ __forceinline__ float half_tangent(float t) {
    const float u = t * t, v = u * u;
    const float low = (0.49999983f - 0.12498311f * u) + v * (0.06221844f - 0.03722929f * u);
    return t * (low + v * v * ((0.02128198f - 0.00890049f * u) + 0.00182630f * v));
}
__device__ __forceinline__ double half_tangent(double t) { return t / (1 + sqrt(1 + t * t)); }

// 1 / x for x in [1, 2], to the last bit or so, without the branches of a division.
__device__ __forceinline__ real reciprocal(real x) {
    const real y = rough_ratio(real(1), x);
    return y * (2 - x * y);
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

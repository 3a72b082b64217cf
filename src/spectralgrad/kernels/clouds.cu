// The rotation, translation and scale that bring one cloud of points onto another, and their gradients: LANES threads a pair of
// clouds. align/clouds.py has the formulas of both ways, align/passes.py those of the way back over the points; both are the twins.
//
// Points are float32 and all else is double, in which the squares of any float32 are numbers: nothing needs another scale. Sums
// run over the lanes; then one thread a pair has the matrix of its clouds and does the rest in registers.
//
// Compile-time: D (coordinates, also M and N of small_svd.cuh), LANES (a power of two), THREADS, SCALED (whether there is a scale),
// WEIGHTED, GIVEN_LARGEST (the largest float32), and what small_svd.cuh asks for with REAL = double.

#include "small_svd.cuh"

#ifndef SHARED
#define SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
typedef float given;
typedef unsigned long long counter;

constexpr int PAIRS = THREADS / LANES;  // of a block
constexpr int WARPS = LANES > 32 ? LANES / 32 : 1;  // of a pair

// Points (N, D) of a cloud, or its weights (N,): strides in numbers.
struct Place { int64 cloud, point, coordinate; };

// What a pair keeps for the way back, and what lies in shared memory on the way there.
struct Kept {
    real mean_x[D], mean_y[D];
    real A[D][D];       // on the way there the cross-covariance, then R
    real V[D][D], sigma[D];
    real variance, s, total;  // of x; the scale; the sum of the weights
    real single_x, single_y;  // whether all points coincide
};

// What the way back does to the points of a pair.
struct Slopes {
    real mean_x[D], mean_y[D], total;
    real G[D][D], gx[D], gy[D], g;  // of the cross-covariance, the means and the variance
};

__device__ __forceinline__ given narrow(real x) { return x != x ? given(x) : given(fmin(fmax(x, -real(GIVEN_LARGEST)), real(GIVEN_LARGEST))); }

// Every x[i] becomes its sum, or its maximum, over the lanes of a pair. `scratch` holds WARPS * COUNT numbers.
template <bool LARGEST_OF, int COUNT> __device__ __forceinline__ void over_lanes(real (&x)[COUNT], real* scratch) {
    #pragma unroll
    for (int i = 0; i < COUNT; ++i)
        #pragma unroll
        for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2) {
            const real other = __shfl_xor_sync(0xffffffffu, x[i], step);
            x[i] = LARGEST_OF ? fmax(x[i], other) : x[i] + other;
        }
    if (WARPS == 1) return;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < COUNT; ++i) scratch[warp * COUNT + i] = x[i];
    __syncthreads();
    for (int i = 0; i < COUNT; ++i) {
        x[i] = scratch[i];
        for (int k = 1; k < WARPS; ++k) x[i] = LARGEST_OF ? fmax(x[i], scratch[k * COUNT + i]) : x[i] + scratch[k * COUNT + i];
    }
    __syncthreads();
}

// The share of a point; one of 0 is not looked at. A weight that cannot be used gives NaN, and so does a sum of 0.
__device__ __forceinline__ real share(const given* w, const Place& at, int64 i, real total) {
    if (!WEIGHTED) return 1 / total;
    const real x = w[i * at.point];
    return (x >= 0 ? x : sqrt(real(-1))) / total;
}

__device__ __forceinline__ void load(real (&z)[D], const given* points, const Place& at, int64 i) {
    #pragma unroll
    for (int k = 0; k < D; ++k) z[k] = points[i * at.point + k * at.coordinate];
}

__device__ __forceinline__ real square(const real (&z)[D]) {
    real sum = 0;
    #pragma unroll
    for (int k = 0; k < D; ++k) sum += z[k] * z[k];
    return sum;
}

// Whether points are one to the rounding of their coordinates, or to that of their variance; not for NaN and Inf, which fmax may drop.
__device__ __forceinline__ bool coincide(const real (&mean)[D], real furthest, real variance, double rounding, double computed) {
    const real size = square(mean);
    return size <= real(LARGEST) && (furthest <= rounding * rounding * size || variance <= computed * computed * size);
}

// The moments of a pair, by its lanes.
__device__ __forceinline__ void collect(Kept& own, const given* x, const given* y, const given* w, const Place& at_x, const Place& at_y,
                                        const Place& at_w, int64 points, int lane, real* scratch, double rounding, double computed) {
    real total[1] = {0};
    if (WEIGHTED) {
        for (int64 i = lane; i < points; i += LANES) total[0] += w[i * at_w.point];
        over_lanes<false>(total, scratch);
    } else total[0] = real(points);
    real sums[2 * D], a[D], b[D];
    #pragma unroll
    for (int k = 0; k < 2 * D; ++k) sums[k] = 0;
    for (int64 i = lane; i < points; i += LANES) {
        const real p = share(w, at_w, i, total[0]);
        if (p == 0) continue;
        load(a, x, at_x, i);
        load(b, y, at_y, i);
        #pragma unroll
        for (int k = 0; k < D; ++k) {
            sums[k] += WEIGHTED ? p * a[k] : a[k];
            sums[D + k] += WEIGHTED ? p * b[k] : b[k];
        }
    }
    over_lanes<false>(sums, scratch);
    real mean_x[D], mean_y[D];
    #pragma unroll
    for (int k = 0; k < D; ++k) {
        mean_x[k] = WEIGHTED ? sums[k] : sums[k] / total[0];
        mean_y[k] = WEIGHTED ? sums[D + k] : sums[D + k] / total[0];
    }
    real second[D * D + 2], furthest[2] = {0, 0};
    #pragma unroll
    for (int k = 0; k < D * D + 2; ++k) second[k] = 0;
    for (int64 i = lane; i < points; i += LANES) {
        const real p = share(w, at_w, i, total[0]);
        if (p == 0) continue;
        load(a, x, at_x, i);
        load(b, y, at_y, i);
        #pragma unroll
        for (int k = 0; k < D; ++k) { a[k] -= mean_x[k]; b[k] -= mean_y[k]; }
        const real aa = square(a), bb = square(b);
        furthest[0] = fmax(furthest[0], aa);
        furthest[1] = fmax(furthest[1], bb);
        second[D * D] += p * aa;
        second[D * D + 1] += p * bb;
        #pragma unroll
        for (int k = 0; k < D; ++k)
            #pragma unroll
            for (int l = 0; l < D; ++l) second[k * D + l] += p * b[k] * a[l];
    }
    over_lanes<false>(second, scratch);
    over_lanes<true>(furthest, scratch);
    if (lane != 0) return;
    own.single_x = coincide(mean_x, furthest[0], second[D * D], rounding, computed);
    own.single_y = coincide(mean_y, furthest[1], second[D * D + 1], rounding, computed);
    const bool single = D > 1 && (own.single_x || own.single_y);  // on a line nothing turns, and one point y is no tie
    own.variance = own.single_x ? real(1) : second[D * D];
    own.total = total[0];
    #pragma unroll
    for (int k = 0; k < D; ++k) {
        own.mean_x[k] = mean_x[k];
        own.mean_y[k] = mean_y[k];
        #pragma unroll
        for (int l = 0; l < D; ++l) own.A[k][l] = single ? real(0) : second[k * D + l];
    }
}

// R (D, D), t (D,) and s of every pair, and what the way back needs. `rounding`: of coordinates, for points that coincide; `computed`:
// the same of their variance; `eps`: what is 0 among the singular values.
extern "C" __global__ void __launch_bounds__(THREADS)
align(const given* __restrict__ x, const given* __restrict__ y, const given* __restrict__ w, given* __restrict__ R, given* __restrict__ t,
      given* __restrict__ s, Kept* __restrict__ kept, counter* nonfinite, counter* not_unique, int64 pairs, int64 points, int64 x_cloud,
      int64 x_point, int64 x_coordinate, int64 y_cloud, int64 y_point, int64 y_coordinate, int64 w_cloud, int64 w_point, double rounding,
      double computed, double eps) {
    SHARED(memory);
    Kept* cells = reinterpret_cast<Kept*>(memory);
    real* scratch = reinterpret_cast<real*>(cells + PAIRS);
    const int group = threadIdx.x / LANES;
    const int64 first = (int64)blockIdx.x * PAIRS, pair = first + group;
    const bool here = pair < pairs;  // a lane without a pair takes part in the sums of its warp
    collect(cells[group], x + (here ? pair * x_cloud : 0), y + (here ? pair * y_cloud : 0), w + (here ? pair * w_cloud : 0),
            {x_cloud, x_point, x_coordinate}, {y_cloud, y_point, y_coordinate}, {w_cloud, w_point, 0}, here ? points : 0,
            threadIdx.x % LANES, scratch, rounding, computed);
    __syncthreads();
    const int64 mine = first + threadIdx.x;
    if (threadIdx.x >= PAIRS || mine >= pairs) return;
    Kept& own = cells[threadIdx.x];
    Triplets X = decompose(&own.A[0][0], {0, D, 1});
    if (X.broken) atomicAdd(nonfinite, counter(1));
    real turn[D][D], along = 0;
    nearest(X, true, turn);
    if (!unique(X, true, eps)) atomicAdd(not_unique, counter(1));
    const real nan = sqrt(real(-1));
    #pragma unroll
    for (int k = 0; k < D; ++k) {
        own.sigma[k] = X.broken ? nan : ldexp(X.S[k], X.exponent);
        #pragma unroll
        for (int l = 0; l < D; ++l) {
            turn[k][l] = X.broken ? nan : turn[k][l];
            along += turn[k][l] * own.A[k][l];
            own.A[k][l] = turn[k][l];
            own.V[k][l] = X.W[l][k];
            R[(mine * D + k) * D + l] = narrow(turn[k][l]);
        }
    }
    own.s = !SCALED || own.single_x ? real(1) : along / own.variance;
    if (SCALED) s[mine] = narrow(own.s);
    #pragma unroll
    for (int k = 0; k < D; ++k) {
        real turned = 0;
        #pragma unroll
        for (int l = 0; l < D; ++l) turned += turn[k][l] * own.mean_x[l];
        t[mine * D + k] = narrow(own.mean_y[k] - own.s * turned);
    }
    if (kept) kept[mine] = own;
}

// The gradients of the moments of a pair for those of R, t and s; a null pointer is 0.
__device__ __forceinline__ void pull_back(Slopes& out, const Kept& own, const given* gR, const given* gt, const given* gs, double eps) {
    real direction[D][D], sigma[D], G[D][D], back = gs ? real(*gs) : real(0);
    #pragma unroll
    for (int k = 0; k < D; ++k) {
        const real g = gt ? real(gt[k]) : real(0);
        real turned = 0;
        #pragma unroll
        for (int l = 0; l < D; ++l) {
            turned += own.A[k][l] * own.mean_x[l];
            direction[k][l] = (gR ? real(gR[k * D + l]) : real(0)) - own.s * g * own.mean_x[l];
        }
        back -= g * turned;
        sigma[k] = own.sigma[k];
        out.gy[k] = g;
        out.mean_x[k] = own.mean_x[k];
        out.mean_y[k] = own.mean_y[k];
    }
    derive(own.A, own.V, sigma, direction, eps, G);
    const bool single = D > 1 && (own.single_x || own.single_y);  // on a line nothing turns, and one point y is no tie
    const real stretch = SCALED && !own.single_x ? back / own.variance : real(0);  // <R, A> is the largest over all R: dR adds nothing
    out.g = -stretch * own.s;
    out.total = own.total;
    #pragma unroll
    for (int l = 0; l < D; ++l) {
        real sum = 0;
        #pragma unroll
        for (int k = 0; k < D; ++k) {
            sum += own.A[k][l] * out.gy[k];
            out.G[k][l] = single ? real(0) : G[k][l] + stretch * own.A[k][l];
        }
        out.gx[l] = -own.s * sum;
    }
}

// gx + G^T b and, in `step`, what the point of y gets: gy + G a.
__device__ __forceinline__ void slopes_at(const Slopes& own, const real (&a)[D], const real (&b)[D], real (&u)[D], real (&step)[D]) {
    #pragma unroll
    for (int k = 0; k < D; ++k) {
        u[k] = own.gx[k];
        step[k] = own.gy[k];
        #pragma unroll
        for (int l = 0; l < D; ++l) {
            u[k] += own.G[l][k] * b[l];
            step[k] += own.G[k][l] * a[l];
        }
    }
}

// dx and dy (pairs, points, D) and dw (pairs, points), contiguous; null for what is not needed.
extern "C" __global__ void __launch_bounds__(THREADS)
spread(const given* __restrict__ x, const given* __restrict__ y, const given* __restrict__ w, const Kept* __restrict__ kept,
       const given* __restrict__ gR, const given* __restrict__ gt, const given* __restrict__ gs, given* __restrict__ dx,
       given* __restrict__ dy, given* __restrict__ dw, int64 pairs, int64 points, int64 x_cloud, int64 x_point, int64 x_coordinate,
       int64 y_cloud, int64 y_point, int64 y_coordinate, int64 w_cloud, int64 w_point, double eps) {
    SHARED(memory);
    Slopes* cells = reinterpret_cast<Slopes*>(memory);
    real* scratch = reinterpret_cast<real*>(cells + PAIRS);
    const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int64 first = (int64)blockIdx.x * PAIRS, pair = first + group, mine = first + threadIdx.x;
    if (threadIdx.x < PAIRS && mine < pairs)
        pull_back(cells[threadIdx.x], kept[mine], gR ? gR + mine * (D * D) : gR, gt ? gt + mine * D : gt, gs ? gs + mine : gs, eps);
    __syncthreads();
    const bool here = pair < pairs;
    const Slopes& own = cells[here ? group : 0];
    const Place at_x = {x_cloud, x_point, x_coordinate}, at_y = {y_cloud, y_point, y_coordinate}, at_w = {w_cloud, w_point, 0};
    if (here) {
        x += pair * x_cloud;
        y += pair * y_cloud;
        if (WEIGHTED) w += pair * w_cloud;
    }
    real mean[1] = {0}, a[D], b[D], u[D], step[D];
    #pragma unroll
    for (int again = 0; again < 2; ++again) {  // first the mean of e, for the weights
        if (again == 0 && !dw) continue;
        for (int64 i = lane; i < (here ? points : 0); i += LANES) {
            const real p = share(w, at_w, i, own.total);
            const int64 at = pair * points + i;
            if (p == 0) {
                if (again == 0) continue;
                #pragma unroll
                for (int k = 0; k < D; ++k) {
                    if (dx) dx[at * D + k] = 0;
                    if (dy) dy[at * D + k] = 0;
                }
                if (dw) dw[at] = 0;
                continue;
            }
            load(a, x, at_x, i);
            load(b, y, at_y, i);
            #pragma unroll
            for (int k = 0; k < D; ++k) { a[k] -= own.mean_x[k]; b[k] -= own.mean_y[k]; }
            slopes_at(own, a, b, u, step);
            real e = 0;
            #pragma unroll
            for (int k = 0; k < D; ++k) {
                e += (u[k] + own.g * a[k]) * a[k] + own.gy[k] * b[k];
                if (again == 0) continue;
                if (dx) dx[at * D + k] = narrow(p * (u[k] + 2 * own.g * a[k]));
                if (dy) dy[at * D + k] = narrow(p * step[k]);
            }
            if (again == 0) mean[0] += p * e;
            else if (dw) dw[at] = narrow((e - mean[0]) / own.total);
        }
        if (again == 0) over_lanes<false>(mean, scratch);
    }
}

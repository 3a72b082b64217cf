// Power iterations with deflation, one matrix in the registers of one block, one block a matrix.
//
// A row of the matrix belongs to a team of four threads, each with every fourth group of four numbers. A product with a
// vector is a sum of a thread, two shuffles in its team, and one exchange of the result through shared memory: one barrier.
// Every team then reads the whole vector, so that norms and dot products need no barrier of their own.
//
// linalg/power is the twin of all this. Rows and columns beyond n are zero and stay so.
//
// Compile-time: REAL (float or double), N (n rounded up to a multiple of 16), TWO_SIDED (1 or 0: the deflation of
// `quotients`).

#include "memory.cuh"

constexpr int TEAM = 4;
constexpr int HELD = N / TEAM;  // numbers of a row that a thread holds
constexpr int THREADS = N * TEAM;
constexpr int WARPS = THREADS / 32;
constexpr int ROW = N + 4;   // of a vector that is kept, with a number behind it
constexpr int WIDE = N + 8;  // of a matrix in shared memory that is read by columns: no two threads of a warp meet in a bank
constexpr int RING = 8;      // rows on their way from global memory; four of them may be in use
constexpr unsigned ALL = 0xffffffffu;

__device__ __forceinline__ int team() { return threadIdx.x / TEAM; }
__device__ __forceinline__ int lane() { return threadIdx.x % TEAM; }

// The column of number j that this thread holds.
__device__ __forceinline__ int column(int j) { return 4 * (lane() + TEAM * (j / 4)) + j % 4; }

__device__ __forceinline__ void read(const real* vector, real (&x)[HELD]) {
    #pragma unroll
    for (int j = 0; j < HELD; j += 4) {
        const Four four = *reinterpret_cast<const Four*>(vector + column(j));
        #pragma unroll
        for (int v = 0; v < 4; ++v) x[j + v] = four.x[v];
    }
}

__device__ __forceinline__ void write(real* vector, const real (&x)[HELD]) {
    #pragma unroll
    for (int j = 0; j < HELD; j += 4) *reinterpret_cast<Four*>(vector + column(j)) = Four{x[j], x[j + 1], x[j + 2], x[j + 3]};
}

__device__ __forceinline__ real dot(const real (&x)[HELD], const real (&y)[HELD]) {
    real sum[4] = {0, 0, 0, 0};  // four chains, to hide the latency of an addition
    #pragma unroll
    for (int j = 0; j < HELD; ++j) sum[j % 4] += x[j] * y[j];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// The same with a vector in shared memory, which takes no registers.
__device__ __forceinline__ real dot(const real (&x)[HELD], const real* vector) {
    real sum[4] = {0, 0, 0, 0};
    #pragma unroll
    for (int j = 0; j < HELD; j += 4) {
        const Four four = *reinterpret_cast<const Four*>(vector + column(j));
        #pragma unroll
        for (int v = 0; v < 4; ++v) sum[v] += x[j + v] * four.x[v];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

__device__ __forceinline__ void add(real (&x)[HELD], real factor, const real (&y)[HELD]) {
    #pragma unroll
    for (int j = 0; j < HELD; ++j) x[j] += factor * y[j];
}

__device__ __forceinline__ void add(real (&x)[HELD], real factor, const real* vector) {
    #pragma unroll
    for (int j = 0; j < HELD; j += 4) {
        const Four four = *reinterpret_cast<const Four*>(vector + column(j));
        #pragma unroll
        for (int v = 0; v < 4; ++v) x[j + v] += factor * four.x[v];
    }
}

__device__ __forceinline__ real team_sum(real x) {
    x += __shfl_xor_sync(ALL, x, 1);
    return x + __shfl_xor_sync(ALL, x, 2);
}

struct Projected { real along, product; };

// x^T y, and T (x - y (x^T y)) for a unit vector y as T x - (x^T y) T y: three sums that need not wait for each other.
__device__ __forceinline__ Projected projected(const real (&T)[HELD], const real* x, const real* y) {
    real along[2] = {0, 0}, Tx[2] = {0, 0}, Ty[2] = {0, 0};
    #pragma unroll
    for (int j = 0; j < HELD; j += 4) {
        const Four a = *reinterpret_cast<const Four*>(x + column(j)), b = *reinterpret_cast<const Four*>(y + column(j));
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            along[v % 2] += a.x[v] * b.x[v];
            Tx[v % 2] += T[j + v] * a.x[v];
            Ty[v % 2] += T[j + v] * b.x[v];
        }
    }
    const real length = team_sum(along[0] + along[1]);
    return {length, team_sum(Tx[0] + Tx[1]) - length * team_sum(Ty[0] + Ty[1])};
}

// What a thread knows of a vector becomes known to all: entry `team()` from each team. Two places take turns, so that one is
// written while the other is still read.
struct Exchange {
    real* places;  // (2, N)
    int turn;
    __device__ __forceinline__ void write(real own) {
        turn ^= 1;
        if (lane() == 0) places[turn * N + team()] = own;
    }
    __device__ __forceinline__ const real* place() const { return places + turn * N; }
};

// The largest |entry| of the block's matrix, or 1 where there is none above 0.
__device__ __forceinline__ real size_of(const real (&held)[HELD], real* scratch) {
    real largest = 0;
    #pragma unroll
    for (int j = 0; j < HELD; ++j) largest = fmax(largest, fabs(held[j]));
    #pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) largest = fmax(largest, __shfl_xor_sync(ALL, largest, lanes));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int warp = 0; warp < WARPS; ++warp) largest = fmax(largest, scratch[warp]);
    return largest > 0 ? largest : real(1);
}

// The Rayleigh quotients v_i^T M_i v_i of NIPS19 Alg. 1, from the last eigenvector to the first; V has them in columns.
//
// With a = M v and q = v^T a the deflations are M - a v^T and, two-sided, (I - v v^T) M (I - v v^T)
// = M - (a - q/2 v) v^T - v (a - q/2 v)^T: M^T v is a, for M is symmetric and stays so.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
quotients(const real* __restrict__ M, const real* __restrict__ V, real* __restrict__ out, int n) {
    SHARED(shared);
    real* vectors = reinterpret_cast<real*>(shared);  // (N, ROW): eigenvectors in rows
    Exchange exchange{vectors + N * ROW, 0};
    M += blockIdx.x * int64(n) * n;
    V += blockIdx.x * int64(n) * n;
    const int row = team();
    real held[HELD];
    #pragma unroll
    for (int j = 0; j < HELD; ++j) {
        const int c = column(j);
        const bool inside = row < n && c < n;
        held[j] = inside ? real(0.5) * M[row * n + c] + real(0.5) * M[c * n + row] : real(0);
        vectors[c * ROW + row] = inside ? V[row * n + c] : real(0);
    }
    __syncthreads();
    for (int i = n - 1; i >= 0; --i) {
        real v[HELD], a[HELD];
        read(vectors + i * ROW, v);
        const real own = team_sum(dot(held, v)), own_v = vectors[i * ROW + row];
        exchange.write(own);
        __syncthreads();
        read(exchange.place(), a);
        const real q = team_sum(dot(v, a));
        if (threadIdx.x == 0) out[blockIdx.x * int64(n) + i] = q;
        if (TWO_SIDED) {
            add(held, q * own_v - own, v);
            add(held, -own_v, a);
        } else {
            add(held, -own, v);
        }
    }
}

// Number i comes before number j; NaN comes last, and equal ones keep their order.
__device__ __forceinline__ bool before(const real* x, int i, int j) {
    const bool broken_i = x[i] != x[i], broken_j = x[j] != x[j];
    if (broken_i || broken_j) return broken_i == broken_j ? i < j : broken_j;
    return x[i] < x[j] || (x[i] == x[j] && i < j);
}

// «PI»: from each start, which stand in columns, `steps` iterations v <- H v / |H v|, then H <- H - H v v^T.
//
// w and V get Rayleigh quotients and vectors, ascending, rank the place of each in that order, size the largest |entry|, to
// which H is scaled. `rows`, unless it is null, keeps steps + 2 rows of each vector: v_0, ..., v_steps, each followed by
// 1 / |H v| of the step that led to it, or 0 where the matrix had nothing left and v stayed; and H v_steps.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
iterate(const real* __restrict__ H, const real* __restrict__ start, real* __restrict__ w, real* __restrict__ V,
        int* __restrict__ rank, real* __restrict__ size, real* __restrict__ rows, int n, int steps) {
    SHARED(shared);
    real* found = reinterpret_cast<real*>(shared);  // (N, N): vectors in rows
    Exchange exchange{found + N * N, 0};
    real* values = exchange.places + 2 * N;
    real* scratch = values + N;  // (WARPS,)
    const int64 matrix = blockIdx.x;
    H += matrix * n * n;
    V += matrix * n * n;
    start += matrix * n * n;
    const int row = team();
    const auto keep = [&](int i, int k, real own, real inverse) {
        if (!rows || lane() != 0) return;
        real* kept = rows + ((matrix * n + i) * (steps + 2) + k) * ROW;
        kept[row] = own;
        if (row == 0) kept[N] = inverse;
    };
    real held[HELD];
    #pragma unroll
    for (int j = 0; j < HELD; ++j) held[j] = row < n && column(j) < n ? H[row * n + column(j)] : real(0);
    const real scale = size_of(held, scratch);
    #pragma unroll
    for (int j = 0; j < HELD; ++j) held[j] /= scale;
    real next = row < n ? start[row * n] : real(0);
    for (int i = 0; i < n; ++i) {
        real own = next, own_v = 0, v[HELD];
        next = row < n && i + 1 < n ? start[row * n + i + 1] : real(0);  // a vector ahead, for memory is far
        for (int k = 0; k <= steps; ++k) {
            exchange.write(own);
            __syncthreads();
            read(exchange.place(), v);
            const real square = team_sum(dot(v, v));
            const bool alive = square > 0;
            const real inverse = alive ? rsqrt(square) : k == 0 ? real(1) : real(0);
            if (alive || k == 0) {
                own_v = own * inverse;
                #pragma unroll
                for (int j = 0; j < HELD; ++j) v[j] *= inverse;
            } else {  // nothing is left of the matrix, as all threads see: back to the last v
                exchange.write(own_v);
                __syncthreads();
                read(exchange.place(), v);
            }
            keep(i, k, own_v, inverse);
            own = team_sum(dot(held, v));
        }
        keep(i, steps + 1, own, 0);
        exchange.write(own);
        if (lane() == 0) found[i * N + row] = own_v;
        __syncthreads();
        const real value = team_sum(dot(v, exchange.place()));
        if (threadIdx.x == 0) values[i] = value * scale;
        add(held, -own, v);
    }
    __syncthreads();
    int* places = reinterpret_cast<int*>(exchange.places);  // nobody reads a vector any more
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int place = 0;
        for (int j = 0; j < n; ++j) place += before(values, j, i);
        places[i] = place;
        rank[matrix * n + i] = place;
        w[matrix * n + place] = values[i];
    }
    if (threadIdx.x == 0) size[matrix] = scale;
    __syncthreads();
    for (int k = threadIdx.x; k < n * n; k += THREADS) V[k / n * n + places[k % n]] = found[k % n * N + k / n];
}

// The gradient of `iterate` by H, backwards through every step. With G the gradient of the deflated matrix, h = H v and
// value v^T h, vector i gives
//
//     gh = gvalue v - G v,   g = gv + gvalue h - G^T h + H^T gh,   G += gh v^T,
//
// and each of its steps v' = H v / r, from the last to the first,
//
//     u = (g - v' (v'^T g)) / r,   G += u v^T,   g <- H^T u.
//
// Threads hold rows of T = H^T and of X = G^T, so that all but G v are products by rows. H_i is that of the last vector with
// the deflations added back: H_i = H_(i+1) + h v^T. Rows come from global memory in the order of their use, two ahead.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
retrace(const real* __restrict__ H, const int* __restrict__ rank, const real* __restrict__ size,
        const real* __restrict__ rows, const real* __restrict__ gw, const real* __restrict__ gV, real* __restrict__ out,
        int n, int steps) {
    SHARED(shared);
    real* ring = reinterpret_cast<real*>(shared);  // (RING, ROW)
    Exchange exchange{ring + RING * ROW, 0};
    real* turned = exchange.places + 2 * N;    // (N, WIDE): X, to be read by columns
    real* cotangents = turned + N * WIDE;      // (N,): of the quotients
    int* places = reinterpret_cast<int*>(cotangents + N);
    const int64 matrix = blockIdx.x;
    H += matrix * n * n;
    gV += matrix * n * n;
    out += matrix * n * n;
    const int each = steps + 2, total = n * each, row = team();
    rows += matrix * total * ROW;
    const real scale = size[matrix];
    for (int i = threadIdx.x; i < n; i += THREADS) {
        places[i] = rank[matrix * n + i];
        cotangents[i] = gw[matrix * n + places[i]] * scale;
    }
    for (int k = threadIdx.x; k < N * N; k += THREADS) {
        const int i = k / N, j = k % N;
        turned[j * WIDE + i] = i < n && j < n ? H[i * n + j] / scale : real(0);
    }
    __syncthreads();
    real T[HELD], X[HELD];
    read(turned + row * WIDE, T);
    #pragma unroll
    for (int j = 0; j < HELD; ++j) X[j] = 0;
    #pragma unroll 1
    for (int i = 0; i < n - 1; ++i) {
        const real* v = rows + int64(i * each + steps) * ROW;
        add(T, -v[row], v + ROW);
    }
    // Row t of those to come is the last but t.
    const auto load = [&](int t) {
        return t < total && threadIdx.x <= N ? rows[int64(total - 1 - t) * ROW + threadIdx.x] : real(0);
    };
    const auto place = [&](int t) { return ring + unsigned(t) % RING * ROW; };
    int pushed = 0;
    real first = load(0), second = load(1);
    const auto push = [&] {
        if (threadIdx.x <= N) place(pushed)[threadIdx.x] = first;
        first = second;
        second = load(++pushed + 1);
    };
    push();
    __syncthreads();  // the places are known
    real next = row < n ? gV[row * n + places[n - 1]] : real(0);
    for (int i = n - 1; i >= 0; --i) {
        const int base = (n - 1 - i) * each;  // h is row `base`, v the next one, then come the iterates
        real g = next;
        next = row < n && i > 0 ? gV[row * n + places[i - 1]] : real(0);
        write(turned + row * WIDE, X);
        push();
        __syncthreads();
        const real *h = place(base), *v = place(base + 1);
        const real own_h = h[row], own_v = v[row], gvalue = cotangents[i];
        real Gv[2] = {0, 0};
        #pragma unroll
        for (int j = 0; j < HELD; ++j) {
            const int k = lane() + TEAM * j;
            Gv[j % 2] += turned[k * WIDE + row] * v[k];
        }
        exchange.write(gvalue * own_v - team_sum(Gv[0] + Gv[1]));
        push();
        __syncthreads();
        if (i < n - 1) add(T, own_v, h);
        const real* gh = exchange.place();
        g += gvalue * own_h + team_sum(dot(T, gh) - dot(X, h));
        add(X, own_v, gh);
        #pragma unroll 1
        for (int k = 0; k < steps; ++k) {
            exchange.write(g);
            push();
            __syncthreads();
            const real *later = place(base + 1 + k), *earlier = place(base + 2 + k);
            const real inverse = later[N];
            if (inverse == 0) continue;  // v stayed, and so does its gradient; all threads agree
            const Projected step = projected(T, exchange.place(), later);
            g = step.product * inverse;
            add(X, earlier[row] * inverse, exchange.place());
            add(X, -earlier[row] * inverse * step.along, later);
        }
    }
    write(turned + row * WIDE, X);
    __syncthreads();
    for (int k = threadIdx.x; k < n * n; k += THREADS) out[k] = turned[k % n * WIDE + k / n] / scale;
}

// Singular triplets of X (m, n), m >= n: one-sided Jacobi on X itself, one matrix in shared memory.
//
// Rotations from the right make the columns of X orthogonal: X J = L diag(s), and X = L diag(s) J^T. J is accumulated. A
// rotation rounds a column relative to its own length, so X = B D, B well conditioned and D diagonal, has small singular
// values that are accurate relative to themselves (Demmel and Veselic 1992).
//
// Columns of X lie in memory as rows G[k], longest first, and those of J as rows W[k]: a rotation turns both. A sweep is
// N - 1 rounds of a tournament; in a round N/2 pairs are independent: LANES threads turn one pair, one barrier ends it.
//
// Each row has a unit of its own, a power of two near its largest entry, in which its length is measured: the squares of
// rows that are 1e-25 of the longest do not underflow. Rows whose entries come near the smallest number become 0, and so do
// rows that a sweep has brought down to the rounding of what they were: they depended on the others, and what is left would
// be turned on and on, to the rounding of the rounding. In the end unit vectors orthogonal to the others replace them.
//
// Wide matrices come and go transposed, by strides.
//
// Compile-time: REAL (float or double), EPS, TINY (the smallest normal number), LARGEST, M (m rounded up to a multiple of 4), N (n likewise;
// the rest is zero and inert), LANES, TEAM, MATRICES (in a block; more than one only if TEAM <= 32), IN_GLOBAL (0: all in shared
// memory, 1: W in `workspace`, 2: G too), NEGLIGIBLE (cosine of two rows that counts as rounding).

#include "teams.cuh"

constexpr bool SOME_IDLE = N / 2 % SLOTS != 0;         // in the last turn of a round some slots have no pair
constexpr int G_STRIDE = M + VEC, W_STRIDE = N + VEC;  // from row to row; columns then fall into several banks
constexpr real NOTHING = real(TINY) / real(EPS);       // rows with no larger entry have lost digits: they count as 0

__device__ __forceinline__ float rough_ratio(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double rough_ratio(double a, double b) { return a / b; }

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

__device__ __forceinline__ real pair_max(real x) {
    #pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// What is known of the rows; each array has N entries.
struct Rows {
    real* length;   // square of the norm, in the row's unit
    real* unit;     // a power of two
    real* inverse;  // 1 / unit
    real* norm;     // when it was last measured; 0 before
};

// Two rows of SIZE numbers, of which a lane holds every LANES-th chunk.
template <int SIZE> struct Pair {
    static constexpr int CHUNKS = SIZE / VEC, STEPS = (CHUNKS + LANES - 1) / LANES;
    Chunk x[STEPS], y[STEPS];

    static __device__ __forceinline__ bool has(int i) { return CHUNKS % LANES == 0 || i < CHUNKS; }

    __device__ __forceinline__ void load(const Chunk* P, const Chunk* Q, int lane) {
        #pragma unroll
        for (int k = 0; k < STEPS; ++k)
            if (const int i = lane + k * LANES; has(i)) { x[k] = P[i]; y[k] = Q[i]; }
    }

    // This lane's part of the dot product, x times `unit`.
    __device__ __forceinline__ real dot(real unit, int lane) const {
        real sum = 0;
        #pragma unroll
        for (int k = 0; k < STEPS; ++k)
            if (has(lane + k * LANES)) {
                real partial = 0;  // a sum of its own for each chunk: short chains
                #pragma unroll
                for (int v = 0; v < VEC; ++v) partial += unit * x[k].x[v] * y[k].x[v];
                sum += partial;
            }
        return sum;
    }

    // Turned by the angle with this sine and half tangent, and back to memory.
    __device__ __forceinline__ void turn(Chunk* P, Chunk* Q, int lane, real s, real half) const {
        #pragma unroll
        for (int k = 0; k < STEPS; ++k)
            if (const int i = lane + k * LANES; has(i)) {
                Chunk u, w;
                #pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    u.x[v] = x[k].x[v] - s * (y[k].x[v] + half * x[k].x[v]);
                    w.x[v] = y[k].x[v] + s * (x[k].x[v] - half * y[k].x[v]);
                }
                P[i] = u;
                Q[i] = w;
            }
    }
};

// Make rows p and q of G orthogonal, and turn those of W along; their lengths follow. `cosine` and `sine` become the largest
// squares met so far: of the cosine between two rows, and of what a rotation moves a row by, relative to it. All threads of a
// warp come here, for the sums; an idle one touches no row.
__device__ __forceinline__ void turn(real* G, real* W, const Rows& rows, int p, int q, int lane, bool idle, real& cosine, real& sine) {
    Chunk* P = reinterpret_cast<Chunk*>(G + p * G_STRIDE);
    Chunk* Q = reinterpret_cast<Chunk*>(G + q * G_STRIDE);
    Pair<M> g;
    idle = SOME_IDLE && idle;
    real a = 0, b = 0, c = 0, p_in_q = 1, q_in_p = 1;  // a unit measured in the other
    if (!idle) {
        a = rows.length[p];
        b = rows.length[q];
        p_in_q = rows.unit[p] * rows.inverse[q];
        q_in_p = rows.unit[q] * rows.inverse[p];
        g.load(P, Q, lane);
        c = g.dot(rows.inverse[p], lane) * rows.inverse[q];  // in both units
    }
    c = pair_sum(c);
    __syncwarp();  // all lanes of the pair have read the lengths before one of them changes them
    const real ab = a * b;
    if (idle || !(c * c > real(NEGLIGIBLE) * real(NEGLIGIBLE) * ab)) return;
    // The tangent (|t| <= 1) in the larger of the units, that of half the angle, and the sine to go with it. The rotation is
    // written with the last two (Rutishauser): the rounding of a cosine near 1 would change the lengths in every round.
    const real less = fmin(p_in_q, q_in_p);
    const real d = p_in_q > 1 ? b * less * less - a : b - a * less * less;
    const real g2 = 2 * c * less, h = d * d + g2 * g2;
    const real t = rough_ratio(g2, d + copysign(h * rsqrt(h), d));
    const real half = half_tangent(t), s = 2 * half * reciprocal(1 + half * half);
    const real c2 = rough_ratio(c * c, ab);
    cosine = fmax(cosine, c2);
    // A short row q moves by s |p| relative to itself, which is the cosine; rows of one length by s.
    sine = fmax(sine, fmax(s * s, c2));
    if (lane == 0) {
        rows.length[p] = fmax(a - t * q_in_p * c, real(EPS) * real(EPS));  // a sum of squares stays one
        rows.length[q] = fmax(b + t * p_in_q * c, real(EPS) * real(EPS));
    }
    g.turn(P, Q, lane, s, half);
    Chunk* Y = reinterpret_cast<Chunk*>(W + p * W_STRIDE);
    Chunk* Z = reinterpret_cast<Chunk*>(W + q * W_STRIDE);
    Pair<N> w;
    w.load(Y, Z, lane);
    w.turn(Y, Z, lane, s, half);
}

// Units and lengths of all rows of G.
__device__ __forceinline__ void measure(real* G, const Rows& rows, int t) {
    const int lane = t % LANES;
    for (int k = t / LANES; k < (N + SLOTS - 1) / SLOTS * SLOTS; k += SLOTS) {
        Chunk* row = reinterpret_cast<Chunk*>(G + k * G_STRIDE);
        real largest = 0, sum = 0, unit = 1, inverse = 1;
        for (int i = lane; k < N && i < M / VEC; i += LANES)
            #pragma unroll
            for (int v = 0; v < VEC; ++v) largest = fmax(largest, fabs(row[i].x[v]));
        largest = pair_max(largest);
        if (largest >= NOTHING) {
            int e;
            frexp(largest, &e);
            unit = ldexp(real(1), e);
            inverse = ldexp(real(1), -e);
        }
        for (int i = lane; k < N && i < M / VEC; i += LANES)
            #pragma unroll
            for (int v = 0; v < VEC; ++v) {
                const real x = inverse * row[i].x[v];
                sum += x * x;
            }
        sum = pair_sum(sum);
        const real norm = sqrt(sum) * unit;
        const bool nothing = k < N && (largest < NOTHING || norm <= N * real(EPS) * rows.norm[k]);
        for (int i = lane; nothing && i < M / VEC; i += LANES)
            #pragma unroll
            for (int v = 0; v < VEC; ++v) row[i].x[v] = 0;
        __syncwarp();  // all lanes of the row have read its last norm
        if (lane == 0 && k < N) {
            rows.length[k] = nothing ? real(0) : sum;
            rows.norm[k] = nothing ? real(0) : norm;
            rows.unit[k] = unit;
            rows.inverse[k] = inverse;
        }
    }
    team_sync();
}

// A matrix (m, n) in memory, and what it is divided by.
struct Given {
    const real* A;  // null: zeros
    int64 row, column;  // strides
    int m, n, exponent;

    __device__ __forceinline__ real at(int i, int j) const {
        return A && i < m && j < n ? ldexp(A[i * row + j * column], -exponent) : real(0);
    }
};

// The columns of X in the given order into G; neighbours in memory to neighbouring threads.
__device__ void fill(const Given& X, real* G, const int* order, int t) {
    const bool along_columns = X.row == 1;
    for (int k = t; k < M * N; k += TEAM) {
        const int i = along_columns ? k % M : k / N, j = along_columns ? k / M : k % N;
        G[j * G_STRIDE + i] = X.at(i, order[j]);
    }
    team_sync();
}

// order[0] is the index of the largest of n values, and so on; ties in their own order.
__device__ void sort(const real* value, int* order, int n, int t) {
    for (int i = t; i < N; i += TEAM) {
        int rank = i < n ? 0 : i;
        for (int j = 0; i < n && j < n; ++j) rank += value[j] > value[i] || (value[j] == value[i] && j < i);
        order[rank] = i;
    }
    team_sync();
}

// Rows of G with length 0 become unit vectors orthogonal to the others, which have length 1. `part` has M entries.
__device__ void complete(real* G, real* length, real* product, real* part, int m, int n, int t) {
    for (;;) {
        int missing = 0;
        while (missing < n && length[missing] != 0) ++missing;
        if (!together(missing < n)) return;
        // The unit vector of which the rows hold least, less what they hold, twice: once leaves rounding.
        for (int i = t; i < m; i += TEAM) {
            real sum = 0;
            #pragma unroll 8
            for (int k = 0; k < n; ++k) sum += G[k * G_STRIDE + i] * G[k * G_STRIDE + i];
            part[i] = sum;
        }
        team_sync();
        int least = 0;
        for (int i = 1; i < m; ++i) if (part[i] < part[least]) least = i;
        team_sync();
        for (int i = t; i < m; i += TEAM) part[i] = real(i == least);
        team_sync();
        for (int again = 0; again < 2; ++again) {
            for (int k = t; k < n; k += TEAM) {
                real sum = 0;
                #pragma unroll 8
                for (int i = 0; i < m; ++i) sum += G[k * G_STRIDE + i] * part[i];
                product[k] = sum;
            }
            team_sync();
            for (int i = t; i < m; i += TEAM) {
                real sum = 0;
                #pragma unroll 8
                for (int k = 0; k < n; ++k) sum += product[k] * G[k * G_STRIDE + i];
                part[i] -= sum;
            }
            team_sync();
        }
        real sum = 0;
        for (int i = 0; i < m; ++i) sum += part[i] * part[i];
        const real inverse = inverse_root(sum);
        for (int i = t; missing < n && i < m; i += TEAM) G[missing * G_STRIDE + i] = part[i] * inverse;
        if (missing < n && t == 0) length[missing] = 1;
        team_sync();
    }
}

// X at strides; left (m, n) and right (n, n) at strides inside a matrix; S (n,), descending. `exponents`, unless it is null, has
// a power of two for each matrix that X has been divided by.
extern "C" __global__ void __launch_bounds__(TEAM * MATRICES)
svd(const real* __restrict__ A, const int* __restrict__ exponents, real* __restrict__ left, real* __restrict__ S,
    real* __restrict__ right, real* workspace, unsigned long long* nonfinite, int* sweeps, int64 batch, int m, int n,
    int64 matrix_stride, int64 row_stride, int64 column_stride, int left_row, int left_column, int right_row, int right_column) {
    SHARED(shared);
    constexpr int ROWS = N * G_STRIDE, TURNS = N * W_STRIDE;
    constexpr int SHARED_ROWS = IN_GLOBAL < 2 ? ROWS : 0, OWN = SHARED_ROWS + (IN_GLOBAL ? 0 : TURNS) + 4 * N + M;
    const int t = threadIdx.x % TEAM, slot = threadIdx.x / TEAM;
    const int64 seat = (int64)blockIdx.x * MATRICES + slot;
    const bool mine = seat < batch;
    const int64 matrix = mine ? seat : batch - 1;  // the rest works along, for the barriers' sake, and writes nothing
    real* own = reinterpret_cast<real*>(shared) + slot * OWN;
    real* outside = workspace + seat * (TURNS + (IN_GLOBAL == 2 ? ROWS : 0));
    real* G = IN_GLOBAL == 2 ? outside + TURNS : own;
    real* W = IN_GLOBAL ? outside : own + SHARED_ROWS;
    real* value = own + OWN - 4 * N - M;
    real* part = value + 4 * N;
    const Rows rows = {value + N, value + 2 * N, value + 3 * N, part};
    int* order = reinterpret_cast<int*>(reinterpret_cast<real*>(shared) + MATRICES * OWN) + slot * N;

    // The exponent of the largest entry, and whether all are finite.
    Given X = {A + matrix * matrix_stride, row_stride, column_stride, m, n, 0};
    real largest = 0;
    bool broken = false;
    for (int k = t; k < m * n; k += TEAM) {
        const int i = row_stride == 1 ? k % m : k / n, j = row_stride == 1 ? k / m : k % n;
        const real x = fabs(X.A[i * row_stride + j * column_stride]);
        broken = broken || !(x <= real(LARGEST));
        largest = fmax(largest, x);
    }
    largest = team_max(largest, value, t);
    broken = team_any(broken);
    if (largest > 0 && !broken) frexp(largest, &X.exponent);
    if (broken) X.A = nullptr;

    // Longest column first.
    for (int i = t; i < N; i += TEAM) { order[i] = i; rows.norm[i] = 0; }
    team_sync();
    fill(X, G, order, t);
    measure(G, rows, t);
    sort(rows.norm, order, n, t);
    for (int i = t; i < N; i += TEAM) rows.norm[i] = 0;
    fill(X, G, order, t);
    for (int k = t; k < N * N; k += TEAM) W[k / N * W_STRIDE + k % N] = real(k % N == order[k / N]);

    int sweep = 0;
    while (sweep++ < MAX_SWEEPS) {
        measure(G, rows, t);  // afresh in every sweep: updates round
        real cosine = 0, sine = 0;
        int p = 0, q = 0;
        for (int r = 0; r < N - 1; ++r) {
            for (int k = t / LANES; k < (N / 2 + SLOTS - 1) / SLOTS * SLOTS; k += SLOTS) {
                if (SLOTS < N / 2 || r == 0) seats(N, r, k < N / 2 ? k : 0, p, q);
                turn(G, W, rows, p, q, t % LANES, k >= N / 2, cosine, sine);
                if (SLOTS >= N / 2) seats(N, r + 1 < N - 1 ? r + 1 : 0, k < N / 2 ? k : 0, p, q);  // before the barrier
            }
            team_sync();
        }
        // What a rotation brings back into a pair that was done is a cosine times its sine: the last sweep left no more
        // than rounding. Singular values that are close turn by large angles, so they are waited for.
        cosine = team_max(cosine, value, t);
        sine = team_max(sine, value, t);
        if (!together(cosine * sine > real(NEGLIGIBLE) * real(NEGLIGIBLE))) break;
    }
    if (sweeps && mine && t == 0) sweeps[matrix] = sweep;
    if (nonfinite && broken && mine && t == 0) atomicAdd(nonfinite, 1ULL);

    // Singular values in descending order, and unit rows.
    measure(G, rows, t);
    for (int i = t; i < N; i += TEAM) value[i] = rows.norm[i];
    team_sync();
    sort(value, order, n, t);
    for (int k = t; k < N * M; k += TEAM) {
        const int i = k / M;
        if (rows.length[i] > 0) G[i * G_STRIDE + k % M] *= rows.inverse[i] * inverse_root(rows.length[i]);
    }
    team_sync();
    complete(G, rows.length, rows.unit, part, m, n, t);
    if (!mine) return;
    const real nan = sqrt(real(-1));
    const int back = X.exponent + (exponents ? exponents[matrix] : 0);
    for (int i = t; i < n; i += TEAM)  // what overflows becomes the largest number
        S[matrix * n + i] = broken ? nan : fmin(ldexp(value[order[i]], back), real(LARGEST));
    left += matrix * m * n;
    right += matrix * n * n;
    for (int k = t; k < m * n; k += TEAM) {
        const int i = left_row == 1 ? k % m : k / n, j = left_row == 1 ? k / m : k % n;
        left[(int64)i * left_row + (int64)j * left_column] = broken ? nan : G[order[j] * G_STRIDE + i];
    }
    for (int k = t; k < n * n; k += TEAM) {
        const int i = right_row == 1 ? k % n : k / n, j = right_row == 1 ? k / n : k % n;
        right[(int64)i * right_row + (int64)j * right_column] = broken ? nan : W[order[j] * W_STRIDE + i];
    }
}

// Eigenpairs of symmetric matrices: one-sided Jacobi on a Cholesky factor, one matrix in shared memory.
//
// H + s I = L L^T, and rotations from the right make the columns of L orthogonal: L J = V Sigma. Then
// H = V (Sigma^2 - s I) V^T, so the columns, normalised, are the eigenvectors: nothing else is accumulated, and small
// eigenvalues of badly scaled matrices come out accurate relative to themselves (Demmel and Veselic 1992).
//
// s is of rounding size for positive semi-definite H, so that the factor exists and no column vanishes. Where the
// factorisation breaks down nevertheless H is indefinite, and s grows to its norm. The diagonal is sorted first, largest
// entry first: L^T L is then closer to diagonal than H (one step of the Cholesky LR iteration), which saves sweeps.
//
// With a starting basis U (WARM), near to the eigenvectors, all this happens to U^T H U, which is nearly diagonal: three
// sweeps do instead of six or seven, and V is U times what comes out. Eigenvalues are then accurate relative to the largest.
//
// Columns of L lie in memory as rows G[k]. A sweep is N - 1 rounds of a round-robin tournament; in a round N/2 pairs of
// rows are independent: LANES threads turn one pair, and one barrier ends the round.
//
// Compile-time: REAL (float or double), EPS, N (n rounded up to a multiple of 4; the rest is zero and inert), LANES (a
// power of two), TEAM (threads of a matrix), MATRICES (matrices in a block; more than one only if TEAM <= 32),
// WARM (1: takes a starting basis), IN_GLOBAL (1: rows in `workspace`, for N beyond shared memory), NEGLIGIBLE (cosine of two rows that counts as rounding).

#include "tournament.cuh"

constexpr int CHUNKS = N / VEC;                               // of a row
constexpr int STEPS = (CHUNKS + LANES - 1) / LANES;           // chunks of a row that a lane holds
constexpr int STRIDE = N + VEC;                               // from row to row; columns then fall into several banks
constexpr int SHARE = (N + WIDTH - 1) / WIDTH;                // entries of it for each of them

// Make rows p and q orthogonal; `length` holds the squares of their norms and follows. `cosine` and `sine` become the largest
// squares met so far: of the cosine between two rows, and of the sine of a rotation. All threads of a warp come here, for
// the sums; an idle one touches no row.
__device__ __forceinline__ void turn(real* G, real* length, int p, int q, int lane, bool idle, real& cosine, real& sine) {
    Chunk* P = reinterpret_cast<Chunk*>(G + p * STRIDE);
    Chunk* Q = reinterpret_cast<Chunk*>(G + q * STRIDE);
    Chunk x[STEPS], y[STEPS];
    idle = SOME_IDLE && idle;
    const real a = idle ? real(1) : length[p], b = idle ? real(1) : length[q], ab = a * b;
    real c = 0;
    #pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int i = lane + k * LANES;
        if (!idle && (CHUNKS % LANES == 0 || i < CHUNKS)) {
            x[k] = P[i];
            y[k] = Q[i];
            real partial = 0;  // a sum of its own for each chunk: short chains
            #pragma unroll
            for (int v = 0; v < VEC; ++v) partial += x[k].x[v] * y[k].x[v];
            c += partial;
        }
    }
    c = pair_sum(c);
    __syncwarp();  // all lanes of the pair have read the lengths before one of them changes them
    if (idle || !(c * c > real(NEGLIGIBLE) * real(NEGLIGIBLE) * ab)) return;
    // The tangent (|t| <= 1), that of half the angle, and the sine to go with it. The rotation is written with the last two
    // (Rutishauser): the rounding of a cosine near 1 would shorten or lengthen the rows in every round.
    const real d = b - a, g = 2 * c, h = d * d + g * g;
    const real t = rough_ratio(g, d + copysign(h * rsqrt(h), d));
    const real half = half_tangent(t), s = 2 * half * reciprocal(1 + half * half);
    cosine = fmax(cosine, rough_ratio(c * c, ab));
    sine = fmax(sine, s * s);
    if (lane == 0) {
        length[p] = fmax(a - t * c, real(TINY));  // a sum of squares stays one
        length[q] = fmax(b + t * c, real(TINY));
    }
    #pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int i = lane + k * LANES;
        if (CHUNKS % LANES == 0 || i < CHUNKS) {
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
}

// Squares of the norms of all rows.
__device__ __forceinline__ void measure(const real* G, real* length, int t) {
    for (int k = t / LANES; k < (N + SLOTS - 1) / SLOTS * SLOTS; k += SLOTS) {
        real a = 0;
        if (k < N) {
            const Chunk* row = reinterpret_cast<const Chunk*>(G + k * STRIDE);
            for (int i = t % LANES; i < CHUNKS; i += LANES)
                #pragma unroll
                for (int v = 0; v < VEC; ++v) a += row[i].x[v] * row[i].x[v];
        }
        a = pair_sum(a);
        if (t % LANES == 0 && k < N) length[k] = a;
    }
    team_sync();
}

// H 2^-e at (i, j), H the symmetric part of M (n, n), rows and columns in the given order.
__device__ __forceinline__ real entry(const real* M, const int* order, int n, int i, int j, int exponent) {
    const int64 p = order[i], q = order[j];
    return real(0.5) * ldexp(M[p * n + q], -exponent) + real(0.5) * ldexp(M[q * n + p], -exponent);
}

// H 2^-e + s I into G. M may be null: zeros.
__device__ void fill(const real* M, real* G, const int* order, int n, int exponent, real s, int t) {
    for (int k = t; k < N * N; k += TEAM) {
        const int i = k / N, j = k % N;
        const real h = M && i < n && j < n ? entry(M, order, n, i, j, exponent) : real(0);
        G[i * STRIDE + j] = i == j && i < n ? h + s : h;
    }
    team_sync();
}

// U becomes the orthonormal basis next to `start`, columns backwards, by one step of Newton-Schulz; I where that is too far.
__device__ void orthonormalise(const real* start, real* U, real* G, int n, int t) {
    for (int k = t; k < N * N; k += TEAM) {
        const int i = k / N, j = k % N;
        U[i * STRIDE + j] = i < n && j < n ? start[(int64)i * n + n - 1 - j] : real(0);
    }
    team_sync();
    real far = 0;
    bool broken = false;
    for (int k = t; k < N * N; k += TEAM) {  // G = U^T U
        const int i = k / N, j = k % N;
        real sum = 0;
        for (int l = 0; l < n; ++l) sum += U[l * STRIDE + i] * U[l * STRIDE + j];
        G[i * STRIDE + j] = sum;
        far = fmax(far, fabs(sum - real(i == j && i < n)));
        broken = broken || !(fabs(sum) <= 2);
    }
    const bool usable = !team_any(broken || far * far > real(0.1) * real(EPS));  // its square is what the step leaves
    team_sync();
    for (int i = t / WIDTH; i < n; i += TEAM / WIDTH) {  // U (3 I - G) / 2, row by row in its place
        real sum[SHARE];
        #pragma unroll
        for (int c = 0; c < SHARE; ++c) sum[c] = 0;
        for (int k = 0; k < n; ++k)
            #pragma unroll
            for (int c = 0; c < SHARE; ++c) {
                const int j = t % WIDTH + c * WIDTH;
                if (j < n) sum[c] += U[i * STRIDE + k] * G[k * STRIDE + j];
            }
        __syncwarp();  // the row has been read
        #pragma unroll
        for (int c = 0; c < SHARE; ++c) {
            const int j = t % WIDTH + c * WIDTH;
            if (j < n) U[i * STRIDE + j] = usable ? real(1.5) * U[i * STRIDE + j] - real(0.5) * sum[c] : real(i == j);
        }
    }
    team_sync();
}

// U^T (H 2^-e) U + s I into G.
__device__ void fill_in_basis(const real* M, const real* U, real* G, const int* order, int n, int exponent, real s, int t) {
    for (int k = t; k < N * N; k += TEAM) {  // T = H U
        const int i = k / N, j = k % N;
        real sum = 0;
        for (int l = 0; M && i < n && j < n && l < n; ++l) sum += entry(M, order, n, i, l, exponent) * U[l * STRIDE + j];
        G[i * STRIDE + j] = sum;
    }
    team_sync();
    for (int j = t / WIDTH; j < n; j += TEAM / WIDTH) {  // U^T T, column by column in its place
        real sum[SHARE];
        #pragma unroll
        for (int c = 0; c < SHARE; ++c) sum[c] = 0;
        for (int k = 0; k < n; ++k)
            #pragma unroll
            for (int c = 0; c < SHARE; ++c) {
                const int i = t % WIDTH + c * WIDTH;
                if (i < n) sum[c] += U[k * STRIDE + i] * G[k * STRIDE + j];
            }
        __syncwarp();  // the column has been read
        #pragma unroll
        for (int c = 0; c < SHARE; ++c) {
            const int i = t % WIDTH + c * WIDTH;
            if (i < n) G[i * STRIDE + j] = i == j ? sum[c] + s : sum[c];
        }
    }
    team_sync();
}

// G becomes the rows of its own upper factor; false where a pivot is not above `least`.
__device__ bool factor(real* G, int n, real least, int t) {
    bool broken = false;
    for (int k = 0; k < n; ++k) {  // right-looking, above the diagonal; rows are scaled at the end
        const real* row = G + k * STRIDE;
        broken = broken || !(row[k] > least);
        const real inverse = 1 / row[k];
        for (int i = k + 1 + t / WIDTH; i < n; i += TEAM / WIDTH) {
            const real f = row[i] * inverse;
            for (int j = i + t % WIDTH; j < n; j += WIDTH) G[i * STRIDE + j] -= f * row[j];
        }
        team_sync();
    }
    broken = team_any(broken);  // and on: teams of one warp pass the barriers together
    for (int i = t / WIDTH; i < n; i += TEAM / WIDTH) {
        real* row = G + i * STRIDE;
        const real pivot = row[i], inverse = inverse_root(pivot);
        __syncwarp();  // every thread of this row has read the pivot
        for (int j = t % WIDTH; j < n; j += WIDTH) row[j] = j > i ? row[j] * inverse : j == i ? pivot * inverse : real(0);
    }
    team_sync();
    return !broken;
}

extern "C" __global__ void __launch_bounds__(TEAM * MATRICES)
eigh(const real* __restrict__ M, const real* __restrict__ start, real* __restrict__ w, real* __restrict__ V, real* workspace,
     unsigned long long* nonfinite, int* sweeps, int64 batch, int n) {
    SHARED(shared);
    constexpr int MATRIX = (1 + WARM) * N * STRIDE, ROWS = IN_GLOBAL ? 0 : MATRIX;
    const int t = threadIdx.x % TEAM, slot = threadIdx.x / TEAM;
    const int64 seat = (int64)blockIdx.x * MATRICES + slot;
    const bool mine = seat < batch;
    const int64 matrix = mine ? seat : batch - 1;  // the rest works along, for the barriers' sake, and writes nothing
    real* own = reinterpret_cast<real*>(shared) + slot * (ROWS + 2 * N);
    real* G = IN_GLOBAL ? workspace + seat * MATRIX : own;
    real* U = G + WARM * N * STRIDE;
    real* value = own + ROWS;
    real* length = value + N;
    int* order = reinterpret_cast<int*>(reinterpret_cast<real*>(shared) + MATRICES * (ROWS + 2 * N)) + 2 * slot * N;
    int* source = order + N;
    M += matrix * n * n;

    // The exponent of the largest entry, and whether all are finite.
    real largest = 0;
    bool broken = false;
    for (int k = t; k < n * n; k += TEAM) {
        const real x = fabs(M[k]);
        broken = broken || !(x <= real(LARGEST));
        largest = fmax(largest, x);
    }
    largest = team_max(largest, value, t);
    broken = team_any(broken);
    const bool zero = broken || largest == 0;
    int exponent = 0;
    if (!zero) frexp(largest, &exponent);
    const real* finite = broken ? nullptr : M;

    // Largest diagonal entry first. A starting basis has its own order.
    for (int i = t; i < n; i += TEAM) value[i] = broken || WARM ? real(0) : M[(int64)i * n + i];
    team_sync();
    for (int i = t; i < n; i += TEAM) {
        int rank = 0;
        for (int j = 0; j < n; ++j) rank += value[j] > value[i] || (value[j] == value[i] && j < i);
        order[rank] = i;
    }
    team_sync();
    if (WARM) orthonormalise(start + matrix * n * n, U, G, n, t);

    // Entries are below 1 now. A shift of rounding size does for a semi-definite H, one above its norm for any.
    real s = zero ? real(1) : real(n < 8 ? 8 : n) * real(EPS);
    if (WARM) fill_in_basis(finite, U, G, order, n, exponent, s, t); else fill(finite, G, order, n, exponent, s, t);
    const bool good = factor(G, n, real(0.25) * s, t);
    if (together(!good)) {
        real norm = 0;
        for (int i = t; i < n && !good; i += TEAM) {
            real sum = 0;
            for (int j = 0; j < n; ++j) sum += fabs(entry(M, order, n, i, j, exponent));
            norm = fmax(norm, sum);
        }
        norm = team_max(norm, value, t);
        if (!good) s = real(1.0625) * norm;
        if (WARM) fill_in_basis(finite, U, G, order, n, exponent, s, t); else fill(finite, G, order, n, exponent, s, t);
        factor(G, n, real(0), t);
    }

    int sweep = 0;
    while (sweep++ < MAX_SWEEPS) {
        measure(G, length, t);  // afresh in every sweep: updates round
        real cosine = 0, sine = 0;
        int p = 0, q = 0;
        for (int r = 0; r < N - 1; ++r) {
            for (int k = t / LANES; k < (N / 2 + SLOTS - 1) / SLOTS * SLOTS; k += SLOTS) {
                if (SLOTS < N / 2 || r == 0) seats(r, k < N / 2 ? k : 0, p, q);
                turn(G, length, p, q, t % LANES, k >= N / 2, cosine, sine);
                if (SLOTS >= N / 2) seats(r + 1 < N - 1 ? r + 1 : 0, k < N / 2 ? k : 0, p, q);  // before the barrier
            }
            team_sync();
        }
        // What a rotation brings back into a pair that was done is a cosine times its sine: the last sweep left no more
        // than rounding. Eigenvalues that are close turn by large angles, so they are waited for.
        cosine = team_max(cosine, value, t);
        sine = team_max(sine, value, t);
        if (!together(cosine * sine > real(NEGLIGIBLE) * real(NEGLIGIBLE))) break;
    }

    // Eigenvalues and their places in ascending order, and the vectors.
    measure(G, length, t);
    const real nan = sqrt(real(-1));
    if (broken && mine && t == 0) atomicAdd(nonfinite, 1ULL);
    if (sweeps && mine && t == 0) sweeps[matrix] = sweep;
    for (int i = t; i < n; i += TEAM) {
        int place = 0;
        for (int j = 0; j < n; ++j) place += length[j] < length[i] || (length[j] == length[i] && j > i);
        source[place] = i;
        value[i] = inverse_root(length[i]);
        if (mine)  // what overflows becomes the largest number
            w[matrix * n + place] = broken ? nan : fmin(fmax(ldexp(length[i] - s, exponent), -real(LARGEST)), real(LARGEST));
    }
    team_sync();
    for (int k = t; mine && k < n * n; k += TEAM) {
        const int i = k / n, j = k % n;
        const real* row = G + source[j] * STRIDE;
        real x = row[i];
        if (WARM) {  // U times what the rotations gave
            x = 0;
            for (int l = 0; l < n; ++l) x += U[i * STRIDE + l] * row[l];
        }
        V[(matrix * n + order[i]) * n + j] = broken ? nan : value[source[j]] * x;
    }
}

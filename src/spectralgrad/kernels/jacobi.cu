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
// Columns of L lie in memory as rows G[k]; a sweep is one tournament of them.
//
// Compile-time, besides what tournament.cuh asks for: EPS, N (n rounded up; the rest is zero and inert), MATRICES (matrices in a
// block; more than one only if TEAM <= 32), WARM (1: takes a starting basis), IN_GLOBAL (1: rows in `workspace`, for N beyond
// shared memory), LARGEST (the largest number).

#include "tournament.cuh"

template <int X> struct PowerOfTwoBelow { static constexpr int VALUE = 2 * PowerOfTwoBelow<X / 2>::VALUE; };
template <> struct PowerOfTwoBelow<1> { static constexpr int VALUE = 1; };
constexpr int SHARE = (N + WIDTH - 1) / WIDTH;                // entries of it for each of them
constexpr int ACROSS = PowerOfTwoBelow<(WIDTH < CHUNKS ? WIDTH : CHUNKS)>::VALUE;  // threads that take a row by chunks

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

// 2^-e as two factors: as one it may be out of range.
struct Scale { real first, second; };

// H 2^-e at (i, j), H the symmetric part of M (n, n), rows and columns in the given order.
__device__ __forceinline__ real entry(const real* M, const int* order, int n, int i, int j, Scale scale) {
    const int64 p = order[i], q = order[j];
    return real(0.5) * (M[p * n + q] * scale.first * scale.second) + real(0.5) * (M[q * n + p] * scale.first * scale.second);
}

// H 2^-e + s I into G. M may be null: zeros.
__device__ void fill(const real* M, real* G, const int* order, int n, Scale scale, real s, int t) {
    #pragma unroll 8
    for (int k = t; k < N * N; k += TEAM) {
        const int i = k / N, j = k % N;
        const real h = M && i < n && j < n ? entry(M, order, n, i, j, scale) : real(0);
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
__device__ void fill_in_basis(const real* M, const real* U, real* G, const int* order, int n, Scale scale, real s, int t) {
    for (int k = t; k < N * N; k += TEAM) {  // T = H U
        const int i = k / N, j = k % N;
        real sum = 0;
        for (int l = 0; M && i < n && j < n && l < n; ++l) sum += entry(M, order, n, i, l, scale) * U[l * STRIDE + j];
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

// 1 / x to the last bit or so, for x in the range of single precision.
__device__ __forceinline__ real inverse_of(real x) {
    real y = rough_inverse((float)x);
    if (sizeof(real) == 8) y *= 2 - x * y;
    return y * (2 - x * y);
}

// G becomes the rows of its own upper factor; false where a pivot is not above `least`.
__device__ bool factor(real* G, int n, real least, int t) {
    constexpr int AT_ONCE = TEAM / ACROSS, UNROLLED = 4;
    bool broken = false;
    for (int k = 0; k < n; ++k) {  // right-looking, from the diagonal's chunk on; rows are scaled at the end
        const real* row = G + k * STRIDE;
        const real pivot = row[k], inverse = inverse_of(pivot);
        broken = broken || !(pivot > least);
        for (int c = t % ACROSS; c < CHUNKS; c += ACROSS) {
            const Chunk top = reinterpret_cast<const Chunk*>(row)[c];
            for (int i = k + 1 + t / ACROSS; i < n; i += UNROLLED * AT_ONCE) {
                Chunk below[UNROLLED];
                #pragma unroll
                for (int u = 0; u < UNROLLED; ++u)
                    if (const int j = i + u * AT_ONCE; j < n && c >= j / VEC) {
                        below[u] = reinterpret_cast<const Chunk*>(G + j * STRIDE)[c];
                        const real f = row[j] * inverse;
                        #pragma unroll
                        for (int v = 0; v < VEC; ++v) below[u].x[v] -= f * top.x[v];
                    }
                #pragma unroll
                for (int u = 0; u < UNROLLED; ++u)
                    if (const int j = i + u * AT_ONCE; j < n && c >= j / VEC)
                        reinterpret_cast<Chunk*>(G + j * STRIDE)[c] = below[u];
            }
        }
        team_sync();
    }
    broken = team_any(broken);  // and on: teams of one warp pass the barriers together
    for (int first = 0; first < n; first += AT_ONCE) {  // as often in all threads of a warp
        const int i = first + t / ACROSS;
        const real pivot = i < n ? G[i * STRIDE + i] : real(1), inverse = inverse_root(pivot);
        __syncwarp();  // every thread of this row has read the pivot
        for (int c = t % ACROSS; i < n && c < CHUNKS; c += ACROSS) {
            Chunk& chunk = reinterpret_cast<Chunk*>(G + i * STRIDE)[c];
            #pragma unroll
            for (int v = 0; v < VEC; ++v) {
                const int j = c * VEC + v;
                chunk.x[v] = j < i ? real(0) : (j == i ? pivot : chunk.x[v]) * inverse;
            }
        }
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
    #pragma unroll 8
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
    const Scale scale = {ldexp(real(1), -(exponent / 2)), ldexp(real(1), exponent / 2 - exponent)};
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
    if (WARM) fill_in_basis(finite, U, G, order, n, scale, s, t); else fill(finite, G, order, n, scale, s, t);
    const bool good = factor(G, n, real(0.25) * s, t);
    if (together(!good)) {
        real norm = 0;
        for (int i = t; i < n && !good; i += TEAM) {
            real sum = 0;
            for (int j = 0; j < n; ++j) sum += fabs(entry(M, order, n, i, j, scale));
            norm = fmax(norm, sum);
        }
        norm = team_max(norm, value, t);
        if (!good) s = real(1.0625) * norm;
        if (WARM) fill_in_basis(finite, U, G, order, n, scale, s, t); else fill(finite, G, order, n, scale, s, t);
        factor(G, n, real(0), t);
    }

    int sweep = 0;
    while (sweep++ < MAX_SWEEPS) {
        measure(G, length, t);  // afresh in every sweep: updates round
        Largest largest;
        int p = 0, q = 0;
        for (int r = 0; r < PLAYERS - 1; ++r) {
            for (int k = t / LANES; k < (TABLES + SLOTS - 1) / SLOTS * SLOTS; k += SLOTS) {
                if (SLOTS < TABLES || r == 0) seats(PLAYERS, r, k < TABLES ? k : 0, p, q);
                meet(G, length, p, q, t % LANES, k >= TABLES, r == 0, largest);
                if (SLOTS >= TABLES) seats(PLAYERS, r + 1 < PLAYERS - 1 ? r + 1 : 0, k < TABLES ? k : 0, p, q);  // before the barrier
            }
            team_sync();
        }
        // What a rotation brings back into a pair that was done is a cosine times its sine, and what a rough angle leaves is a
        // cosine times ROUGH: the last sweep left no more than rounding. Eigenvalues that are close turn by large angles, so
        // they are waited for.
        const real cosine = team_max(largest.cosine, value, t), sine = team_max(largest.sine, value, t);
        if (!together(cosine * fmax(sine, real(ROUGH * ROUGH)) > real(NEGLIGIBLE) * real(NEGLIGIBLE))) break;
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
    for (int i = t / WIDTH; mine && i < n; i += TEAM / WIDTH) {
        real* out = V + (matrix * n + order[i]) * n;
        #pragma unroll 4
        for (int j = t % WIDTH; j < n; j += WIDTH) {
            const real* row = G + source[j] * STRIDE;
            real x = row[i];
            if (WARM) {  // U times what the rotations gave
                x = 0;
                for (int l = 0; l < n; ++l) x += U[i * STRIDE + l] * row[l];
            }
            out[j] = broken ? nan : value[source[j]] * x;
        }
    }
}

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

constexpr int ROWS = N;
#include "tournament.cuh"
#include "cholesky.cuh"

constexpr int SHARE = (N + WIDTH - 1) / WIDTH;  // entries of a row for each of the threads that take one at a time


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

extern "C" __global__ void __launch_bounds__(TEAM * MATRICES)
eigh(const real* __restrict__ M, const real* __restrict__ start, real* __restrict__ w, real* __restrict__ V, real* workspace,
     unsigned long long* nonfinite, int* sweeps, int64 batch, int n) {
    SHARED(shared);
    constexpr int MATRIX = (1 + WARM) * N * STRIDE, INSIDE = IN_GLOBAL ? 0 : MATRIX;
    const int t = threadIdx.x % TEAM, slot = threadIdx.x / TEAM;
    const int64 seat = (int64)blockIdx.x * MATRICES + slot;
    const bool mine = seat < batch;
    const int64 matrix = mine ? seat : batch - 1;  // the rest works along, for the barriers' sake, and writes nothing
    real* own = reinterpret_cast<real*>(shared) + slot * (INSIDE + 2 * N);
    real* G = IN_GLOBAL ? workspace + seat * MATRIX : own;
    real* U = G + WARM * N * STRIDE;
    real* value = own + INSIDE;
    real* length = value + N;
    int* order = reinterpret_cast<int*>(reinterpret_cast<real*>(shared) + MATRICES * (INSIDE + 2 * N)) + 2 * slot * N;
    int* source = order + N;
    M += matrix * n * n;

    const Size size = size_of(M, n, value, t);
    const real* finite = size.broken ? nullptr : M;
    sort_diagonal(M, order, n, size.broken || WARM, value, t);  // a starting basis has its own order
    if (WARM) orthonormalise(start + matrix * n * n, U, G, n, t);
    const real s = factor_shifted([&](real shift) {
        if (WARM) fill_in_basis(finite, U, G, order, n, size.scale, shift, t); else fill(finite, G, order, n, size.scale, shift, t);
    }, M, G, order, n, size, value, t);

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
        largest = {team_max(largest.cosine, value, t), team_max(largest.sine, value, t)};
        if (!together(unfinished(largest))) break;
    }

    // Eigenvalues and their places in ascending order, and the vectors.
    measure(G, length, t);
    const real nan = sqrt(real(-1));
    if (size.broken && mine && t == 0) atomicAdd(nonfinite, 1ULL);
    if (sweeps && mine && t == 0) sweeps[matrix] = sweep;
    for (int i = t; i < n; i += TEAM) {
        int place = 0;
        for (int j = 0; j < n; ++j) place += length[j] < length[i] || (length[j] == length[i] && j > i);
        source[place] = i;
        value[i] = inverse_root(length[i]);
        if (mine) w[matrix * n + place] = size.broken ? nan : eigenvalue(length[i], s, size);
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
            out[j] = size.broken ? nan : value[source[j]] * x;
        }
    }
}

// Eigenpairs of symmetric matrices as in jacobi.cu, one matrix in a cluster of blocks: for few matrices, which leave most of a
// GPU idle otherwise.
//
// Every block factors the matrix, since that takes less time than handing it round, and keeps ROWS rows of the factor: two groups.
// In a phase each row of one group meets each of the other, inside the block; then groups go on to other blocks, straight from the
// registers that hold them into the other's shared memory, and a barrier of the cluster ends the phase. After 2 CLUSTER - 1
// phases every two groups have met, each is back where it was, and the sweep is over. Rows of the same group meet in the first phase.
//
// A block has two places for its rows, both inside the memory of the factor, and reads one while others fill the other. A place is
// filled a phase after it was last read, so one barrier in between does.
//
// Compile-time, besides what tournament.cuh and cholesky.cuh ask for: N (n rounded up, to a multiple of 2 CLUSTER PLAYER; the rest is
// zero and inert), CLUSTER (blocks, at least 2).

constexpr int ROWS = N / CLUSTER;
#include "tournament.cuh"
#include "cholesky.cuh"
#include "cluster.cuh"

static_assert(SLOTS >= TABLES, "a table of a round for each group of lanes");

// Where the groups of table k, one a side, go after a phase: a tournament, of which side 1 of table 0 sits still.
struct Seat { int block, side; };
__device__ __forceinline__ Seat next_seat(int block, int side) {
    if (side == 0) return block > 0 ? Seat{block - 1, 0} : Seat{1, 1};
    if (block == 0) return Seat{0, 1};
    return block < CLUSTER - 1 ? Seat{block + 1, 1} : Seat{block, 0};
}

// The rows of a block and the squares of their norms, in the first or second of its places.
struct Place { real *rows, *length; };
__device__ __forceinline__ Place place_of(real* G, real* length, int block, int which) {
    return {G + (block + which) % CLUSTER * ROWS * STRIDE, length + which * ROWS};
}

// The rows of player p, in registers, to where they are in the next phase.
template <int SIDE>
__device__ __forceinline__ void hand_on(real* G, real* length, int block, int which, int p, const Chunk (&x)[2 * PLAYER][STEPS],
                                        const real (&own)[2 * PLAYER], int lane) {
    const Seat to = next_seat(block, p / TABLES);
    const Place place = place_of(G, length, to.block, 1 - which);
    give<SIDE>(in_block(place.rows, to.block), in_block(place.length, to.block), to.side * TABLES + p % TABLES, x, own, lane);
}

// A phase: rows of different groups meet, in the first one all do. Those of the first group stay in registers then.
__device__ __forceinline__ void play(real* G, real* length, int block, int which, bool first, int t, Largest& largest) {
    const Place here = place_of(G, length, block, which);
    const int rounds = first ? PLAYERS - 1 : TABLES, lane = t % LANES, table = t / LANES;
    const bool works = t / 32 * 32 / LANES < TABLES, idle = SOME_IDLE && table >= TABLES;  // an idle warp only waits
    int p = table, q = 0;
    Chunk x[2 * PLAYER][STEPS];
    real own[2 * PLAYER];
    for (int r = 0; r < rounds; ++r) {
        if (works) {
            if (first) seats(PLAYERS, r, idle ? 0 : table, p, q);
            else q = TABLES + (r == 0 ? table : q + 1 < PLAYERS ? q + 1 - TABLES : 0);
            if (first || r == 0) take<0>(here.rows, here.length, p, x, own, lane, idle);
            take<1>(here.rows, here.length, q, x, own, lane, idle);
            const bool turned = turn_rows(x, own, lane, first && r == 0, largest);
            if (turned && r + 1 < rounds) {
                if (first) give<0>(here.rows, here.length, p, x, own, lane);
                give<1>(here.rows, here.length, q, x, own, lane);
            }
        }
        if (r + 1 < rounds) team_sync();
    }
    if (works && !idle) {
        hand_on<0>(G, length, block, which, p, x, own, lane);
        hand_on<1>(G, length, block, which, q, x, own, lane);
    }
}

// The arguments are those of jacobi.cu; there is no starting basis, and nothing lies in global memory.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(TEAM, 1)
eigh(const real* __restrict__ M, const real*, real* __restrict__ w, real* __restrict__ V, real*, unsigned long long* nonfinite,
     int* sweeps, int64, int n) {
    SHARED(shared);
    const int t = threadIdx.x, block = blockIdx.x % CLUSTER;
    const int64 matrix = blockIdx.x / CLUSTER;
    real* G = reinterpret_cast<real*>(shared);
    real* value = G + N * STRIDE;
    real* length = value + N;   // of the rows in both places
    real* found = length + N;   // the largest cosine and sine of each block
    int* order = reinterpret_cast<int*>(found + N);
    int* source = order + N;    // this block's rows in ascending order, and the columns that they become
    int* column = source + ROWS;
    M += matrix * n * n;

    const Size size = size_of(M, n, value, t);
    sort_diagonal(M, order, n, size.broken, value, t);
    const real s = factor_shifted([&](real shift) {
        fill(size.broken ? nullptr : M, G, order, n, size.scale, shift, t);
    }, M, G, order, n, size, value, t);
    cluster_sync();  // nobody needs the rows of others any more

    int sweep = 0, which = 0;
    while (sweep++ < MAX_SWEEPS) {
        const Place here = place_of(G, length, block, which);
        measure(here.rows, here.length, t);  // afresh in every sweep: updates round
        Largest largest;
        for (int phase = 0; phase < 2 * CLUSTER - 1; ++phase, which = 1 - which) {
            play(G, length, block, which, phase == 0, t, largest);
            if (phase == 2 * CLUSTER - 2) {
                largest = {team_max(largest.cosine, value, t), team_max(largest.sine, value, t)};
                if (t < CLUSTER) {
                    real* other = in_block(found, t);
                    other[2 * block] = largest.cosine;
                    other[2 * block + 1] = largest.sine;
                }
            }
            cluster_sync();
        }
        for (int k = 0; k < CLUSTER; ++k)
            largest = {fmax(largest.cosine, found[2 * k]), fmax(largest.sine, found[2 * k + 1])};
        if (!unfinished(largest)) break;  // the same in all blocks
    }

    // Rows are where they were in the beginning. Every block gets the lengths of all.
    const Place here = place_of(G, length, block, which);
    measure(here.rows, here.length, t);
    for (int k = t; k < ROWS * CLUSTER; k += TEAM) in_block(value, k / ROWS)[block * ROWS + k % ROWS] = here.length[k % ROWS];
    cluster_sync();  // the last: from here on each is alone
    const real nan = sqrt(real(-1));
    if (size.broken && block == 0 && t == 0) atomicAdd(nonfinite, 1ULL);
    if (sweeps && block == 0 && t == 0) sweeps[matrix] = sweep;
    const int rows = min(max(n - block * ROWS, 0), ROWS);  // that are not padding
    for (int k = t; k < rows; k += TEAM) {
        const int i = block * ROWS + k;
        int place = 0, here_place = 0;
        for (int j = 0; j < n; ++j) {
            const bool before = value[j] < value[i] || (value[j] == value[i] && j > i);
            place += before;
            here_place += before && j / ROWS == block;
        }
        source[here_place] = k;
        column[here_place] = place;
        here.length[k] = inverse_root(value[i]);
        w[matrix * n + place] = size.broken ? nan : eigenvalue(value[i], s, size);
    }
    team_sync();
    for (int k = t; k < n * rows; k += TEAM) {
        const int i = k / rows, j = source[k % rows];
        V[(matrix * n + order[i]) * n + column[k % rows]] = size.broken ? nan : here.length[j] * here.rows[j * STRIDE + i];
    }
}

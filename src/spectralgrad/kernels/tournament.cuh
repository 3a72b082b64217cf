// A tournament of rows: every two of them become orthogonal by a plane rotation, round after round. For one-sided Jacobi.
//
// Players have PLAYER rows each. In a round each plays against one other; where two meet, LANES threads hold their rows in
// registers and turn every pair of them, PLAYER pairs at a time, which are independent. What bounds a kernel is the way of the
// rows through shared memory, the barrier after a round, and the chain from a dot product to an angle. The first two come once
// for PLAYER turns of a row. In the third, the lanes share the angles out.
//
// Compile-time, besides what teams.cuh asks for: N (numbers of a row, a multiple of 4), PLAYER (1, 2 or 4), PAD (numbers between
// two rows), NEGLIGIBLE (cosine of two rows that counts as rounding), TINY (the smallest normal number); and ROWS (how many rows
// there are, a multiple of 2 PLAYER), a constant that stands before this file.

#include "teams.cuh"

constexpr int CHUNKS = N / VEC;                               // of a row
constexpr int STEPS = (CHUNKS + LANES - 1) / LANES;           // chunks of a row that a lane holds
constexpr int PLAYERS = ROWS / PLAYER;                        // an even number
constexpr int TABLES = PLAYERS / 2;                           // meetings of a round
constexpr bool SOME_IDLE = TABLES % SLOTS != 0;               // in the last turn of a round some slots have no meeting
constexpr int STRIDE = N + PAD;                               // from row to row; columns then fall into several banks
constexpr int SHARED_OUT = LANES < PLAYER ? 1 : PLAYER;       // angles that a lane leaves to others, and its own
constexpr float ROUGH = 1e-6f;                                // relative error of an angle, with some room
struct Largest { real cosine = 0, sine = 0; };                // squares: of the cosine between two rows, of the sine of a turn

// 1 / x and 1 / sqrt(x) to some bits less than single precision, without the care for numbers that are no normal ones.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ float rough_inverse(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float rough_root(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#else
static float rough_inverse(float x) { return 1.0f / x; }
static float rough_root(float x) { return rsqrt(x); }
#endif

// tan(x / 2) of the turn by x, |x| <= pi / 4, that makes two rows orthogonal: d is the difference of their squared lengths, g
// twice their product, tan(2 x) = g / d. It is sin(2 x) q(cos(2 x)), q(c) = 1 / (2 k (1 + k)), k = sqrt((1 + c) / 2), and the
// polynomial is q to 5e-7. An angle need not be exact, in double precision neither: a turn then leaves ROUGH of a cosine. This
// is the longest chain of a round, so it has one special function.
__device__ __forceinline__ float half_tangent(float d, float g) {
    const float r = rough_root(d * d + g * g), c = fabs(d) * r, c2 = c * c;
    const float low = (0.41421334f - 0.29286459f * c) + c2 * (0.23680369f - 0.19900297f * c);
    const float high = (0.15757575f - 0.10093448f * c) + c2 * (0.04259483f - 0.00838570f * c);
    return g * r * copysign(low + c2 * c2 * high, d);
}

// sin(x) for u = tan(x / 2), to the last bit: the squares of a sine and its cosine must add up to 1. 1 / (1 + u^2), u^2 below
// 0.172, is 1 - u^2 times a polynomial that is 1 / (1 + u^2) to 2e-7.
__device__ __forceinline__ float sine_of(float u) {
    const float v = u * u, w = v * v;
    const float inverse = (0.99999981f - 0.99994326f * v) + w * ((0.99730699f - 0.95429089f * v) + w * 0.66780324f);
    return 2 * u * (1 - v * inverse);
}
// In double precision a guess of the inverse is off by some e of single precision: 1 + e + e^2 times it is the inverse.
__device__ __forceinline__ double sine_of(double u) {
    const float guess = rough_inverse(1 + (float)u * (float)u);
    const double inverse = guess, first = 2 * u * inverse, e = 1 - (1 + u * u) * inverse;
    return first + first * (e + e * e);
}

// The turn of two rows whose squared lengths are a and b and whose product is c. Rows that are orthogonal to rounding are not
// turned. In single precision squares of these numbers stay in range, since squared lengths are above EPS; in double
// precision they are divided by the larger length first. No branch, so that the chains of several pairs interleave.
struct Turn {
    float half;  // the tangent of half the angle
    real sine;
    real moved;  // from a to b: c times the tangent
};
__device__ __forceinline__ Turn turn_of(real a, real b, real c, Largest& largest) {
    const real ab = a * b, square = c * c;
    const float scale = sizeof(real) == 4 ? 1.0f : rough_inverse((float)fmax(a, b));
    const bool turned = square > real(NEGLIGIBLE) * real(NEGLIGIBLE) * ab;
    const float half = half_tangent((float)(b - a) * scale, 2 * (float)c * scale);
    Turn turn;
    turn.half = turned ? half : 0.0f;
    turn.sine = sine_of(real(turn.half));
    turn.moved = turn.sine * c * rough_inverse((float)(1 - turn.sine * turn.half));
    largest.cosine = fmax(largest.cosine, turned ? square * rough_inverse((float)ab) : real(0));
    largest.sine = fmax(largest.sine, turn.sine * turn.sine);
    return turn;
}

// c[i] summed over the lanes of a meeting. Of PLAYER sums a lane gets the one of its own number, c[lane % PLAYER], at c[0]: in
// each step it gives half of the HAVE that it has to its neighbour and takes the other half.
template <int HAVE>
__device__ __forceinline__ void share_out(real (&c)[PLAYER], int lane) {
    if constexpr (HAVE > 1) {
        constexpr int HALF = HAVE / 2;
        const bool upper = lane & HALF;
        #pragma unroll
        for (int i = 0; i < HALF; ++i) {
            const real given = upper ? c[i] : c[i + HALF], kept = upper ? c[i + HALF] : c[i];
            c[i] = kept + __shfl_xor_sync(0xffffffffu, given, HALF);
        }
        share_out<HALF>(c, lane);
    }
}
__device__ __forceinline__ void sum_over_lanes(real (&c)[PLAYER], int lane) {
    share_out<SHARED_OUT>(c, lane);
    #pragma unroll
    for (int step = LANES / 2; step >= SHARED_OUT; step /= 2)
        #pragma unroll
        for (int i = 0; i < PLAYER / SHARED_OUT; ++i) c[i] += __shfl_xor_sync(0xffffffffu, c[i], step);
}

// The i-th of PLAYER pairs that are turned at once, all of different rows: for r = 0 to PLAYER - 1 those between two players,
// and for r = -1 to 1 - PLAYER those inside of each of them, whose rows differ by the bits of -r.
template <int r>
struct Pair {
    static constexpr int BIT = -r < 2 ? 1 : 2;  // the highest of -r, which is below 4
    __device__ static constexpr int first(int i) { return r >= 0 ? i : i / BIT * 2 * BIT + i % BIT; }
    __device__ static constexpr int second(int i) { return r >= 0 ? PLAYER + (i ^ r) : first(i) ^ -r; }
};

// Make the pairs of r orthogonal. `length` holds the squares of the norms and follows. All threads of a warp come here, for the
// sums. Returns whether any turned.
//
// A rotation is three shears, by the tangent of half its angle, the sine, and that tangent again. Near the identity none of
// these numbers is near 1: the rounding of a cosine would shorten or lengthen the rows in every round (Rutishauser).
template <int r>
__device__ __forceinline__ bool turn(Chunk (&x)[2 * PLAYER][STEPS], real (&length)[2 * PLAYER], int lane, Largest& largest) {
    real c[PLAYER];
    Turn turns[PLAYER];
    #pragma unroll
    for (int i = 0; i < PLAYER; ++i) {
        c[i] = 0;
        #pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            real partial = 0;  // a sum of its own for each chunk: short chains
            #pragma unroll
            for (int v = 0; v < VEC; ++v) partial += x[Pair<r>::first(i)][k].x[v] * x[Pair<r>::second(i)][k].x[v];
            c[i] += partial;
        }
    }
    sum_over_lanes(c, lane);
    if (SHARED_OUT > 1) {
        real a = length[Pair<r>::first(0)], b = length[Pair<r>::second(0)];
        #pragma unroll
        for (int i = 1; i < PLAYER; ++i) {  // values, not places: an index known at run time only would send them to memory
            const real other_a = length[Pair<r>::first(i)], other_b = length[Pair<r>::second(i)];
            a = lane % PLAYER == i ? other_a : a;
            b = lane % PLAYER == i ? other_b : b;
        }
        const Turn own = turn_of(a, b, c[0], largest);
        #pragma unroll
        for (int i = 0; i < PLAYER; ++i) {
            turns[i].half = __shfl_sync(0xffffffffu, own.half, i, SHARED_OUT);
            turns[i].sine = __shfl_sync(0xffffffffu, own.sine, i, SHARED_OUT);
            turns[i].moved = __shfl_sync(0xffffffffu, own.moved, i, SHARED_OUT);
        }
    } else {
        #pragma unroll
        for (int i = 0; i < PLAYER; ++i) turns[i] = turn_of(length[Pair<r>::first(i)], length[Pair<r>::second(i)], c[i], largest);
    }
    bool any = false;
    #pragma unroll
    for (int i = 0; i < PLAYER; ++i) {
        length[Pair<r>::first(i)] = fmax(length[Pair<r>::first(i)] - turns[i].moved, real(TINY));  // a sum of squares stays one
        length[Pair<r>::second(i)] = fmax(length[Pair<r>::second(i)] + turns[i].moved, real(TINY));
        any = any || turns[i].half != 0;
    }
    if (!any) return false;
    #pragma unroll
    for (int i = 0; i < PLAYER; ++i)
        #pragma unroll
        for (int k = 0; k < STEPS; ++k)
            #pragma unroll
            for (int v = 0; v < VEC; ++v) {
                real& u = x[Pair<r>::first(i)][k].x[v];
                real& w = x[Pair<r>::second(i)][k].x[v];
                u -= turns[i].half * w;
                w += turns[i].sine * u;
                u -= turns[i].half * w;
            }
    return true;
}

// The pairs of r = FIRST to LAST, one set after the other.
template <int FIRST, int LAST>
__device__ __forceinline__ bool turn_all(Chunk (&x)[2 * PLAYER][STEPS], real (&length)[2 * PLAYER], int lane, Largest& largest) {
    if constexpr (FIRST <= LAST) {
        const bool turned = turn<FIRST>(x, length, lane, largest);
        return turn_all<FIRST + 1, LAST>(x, length, lane, largest) || turned;
    }
    return false;
}

// The rows of player p into registers, as those of the SIDE-th of two who meet. For idle lanes zeros.
template <int SIDE>
__device__ __forceinline__ void take(const real* G, const real* length, int p, Chunk (&x)[2 * PLAYER][STEPS], real (&own)[2 * PLAYER],
                                     int lane, bool idle) {
    #pragma unroll
    for (int i = 0; i < PLAYER; ++i) {
        const int row = p * PLAYER + i, at = SIDE * PLAYER + i;
        const Chunk* from = reinterpret_cast<const Chunk*>(G + row * STRIDE);
        own[at] = idle ? real(1) : length[row];
        #pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const int j = lane + k * LANES;
            if (!idle && (CHUNKS % LANES == 0 || j < CHUNKS)) x[at][k] = from[j]; else x[at][k] = Chunk{};
        }
    }
}

// And back.
template <int SIDE>
__device__ __forceinline__ void give(real* G, real* length, int p, const Chunk (&x)[2 * PLAYER][STEPS], const real (&own)[2 * PLAYER],
                                     int lane) {
    #pragma unroll
    for (int i = 0; i < PLAYER; ++i) {
        const int row = p * PLAYER + i, at = SIDE * PLAYER + i;
        Chunk* to = reinterpret_cast<Chunk*>(G + row * STRIDE);
        if (lane == 0) length[row] = own[at];
        #pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const int j = lane + k * LANES;
            if (CHUNKS % LANES == 0 || j < CHUNKS) to[j] = x[at][k];
        }
    }
}

// Every row of one player and every row of the other become orthogonal, one pair after the other, and with `inside` those of
// the same player too. Returns whether any turned; by then all lanes of a warp have read the lengths in memory.
__device__ __forceinline__ bool turn_rows(Chunk (&x)[2 * PLAYER][STEPS], real (&own)[2 * PLAYER], int lane, bool inside, Largest& largest) {
    bool turned = inside && turn_all<1 - PLAYER, -1>(x, own, lane, largest);
    turned = turn_all<0, PLAYER - 1>(x, own, lane, largest) || turned;
    __syncwarp();
    return turned;
}

// Players p and q meet, in the first round of a sweep each with itself too. An idle group of lanes works along and touches no row.
__device__ __forceinline__ void meet(real* G, real* length, int p, int q, int lane, bool idle, bool inside, Largest& largest) {
    Chunk x[2 * PLAYER][STEPS];
    real own[2 * PLAYER];
    idle = SOME_IDLE && idle;
    take<0>(G, length, p, x, own, lane, idle);
    take<1>(G, length, q, x, own, lane, idle);
    if (!turn_rows(x, own, lane, inside, largest)) return;  // an idle one turns nothing
    give<0>(G, length, p, x, own, lane);
    give<1>(G, length, q, x, own, lane);
}

// What a rotation brings back into a pair that was done is a cosine times its sine, and what a rough angle leaves is a cosine
// times ROUGH: a sweep for which this is false left no more than rounding. Eigenvalues that are close turn by large angles, so
// they are waited for.
__device__ __forceinline__ bool unfinished(Largest found) {
    return found.cosine * fmax(found.sine, real(ROUGH * ROUGH)) > real(NEGLIGIBLE) * real(NEGLIGIBLE);
}

// Squares of the norms of all rows.
__device__ __forceinline__ void measure(const real* G, real* length, int t) {
    for (int k = t / LANES; k < (ROWS + SLOTS - 1) / SLOTS * SLOTS; k += SLOTS) {
        real a = 0;
        if (k < ROWS) {
            const Chunk* row = reinterpret_cast<const Chunk*>(G + k * STRIDE);
            for (int i = t % LANES; i < CHUNKS; i += LANES)
                #pragma unroll
                for (int v = 0; v < VEC; ++v) a += row[i].x[v] * row[i].x[v];
        }
        a = pair_sum(a);
        if (t % LANES == 0 && k < ROWS) length[k] = a;
    }
    team_sync();
}

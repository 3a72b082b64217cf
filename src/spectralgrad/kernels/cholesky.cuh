// The shifted Cholesky factor of a symmetric matrix, in place, and its scale: what jacobi.cu starts from.
//
// Compile-time, besides what tournament.cuh asks for, which stands before this file: EPS, LARGEST (the largest number).

template <int X> struct PowerOfTwoBelow { static constexpr int VALUE = 2 * PowerOfTwoBelow<X / 2>::VALUE; };
template <> struct PowerOfTwoBelow<1> { static constexpr int VALUE = 1; };
constexpr int ACROSS = PowerOfTwoBelow<(WIDTH < CHUNKS ? WIDTH : CHUNKS)>::VALUE;  // threads that take a row by chunks

// 2^-e as two factors: as one it may be out of range.
struct Scale { real first, second; };

// The exponent e of the largest entry of M, and whether some entry is not finite. `zero`: nothing is left to decompose.
struct Size { int exponent; bool broken, zero; Scale scale; };
__device__ __forceinline__ Size size_of(const real* M, int n, real* scratch, int t) {
    real largest = 0;
    Size size = {0, false, false, {}};
    #pragma unroll 8
    for (int k = t; k < n * n; k += TEAM) {
        const real x = fabs(M[k]);
        size.broken = size.broken || !(x <= real(LARGEST));
        largest = fmax(largest, x);
    }
    largest = team_max(largest, scratch, t);
    size.broken = team_any(size.broken);
    size.zero = size.broken || largest == 0;
    if (!size.zero) frexp(largest, &size.exponent);
    size.scale = {ldexp(real(1), -(size.exponent / 2)), ldexp(real(1), size.exponent / 2 - size.exponent)};
    return size;
}

// `order` becomes the places of the diagonal's entries, largest first; with `unsorted`, as they are.
__device__ __forceinline__ void sort_diagonal(const real* M, int* order, int n, bool unsorted, real* scratch, int t) {
    for (int i = t; i < n; i += TEAM) scratch[i] = unsorted ? real(0) : M[(int64)i * n + i];
    team_sync();
    for (int i = t; i < n; i += TEAM) {
        int rank = 0;
        for (int j = 0; j < n; ++j) rank += scratch[j] > scratch[i] || (scratch[j] == scratch[i] && j < i);
        order[rank] = i;
    }
    team_sync();
}

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

// 1 / x to the last bit or so, for x in the range of single precision.
__device__ __forceinline__ real inverse_of(real x) {
    real y = rough_inverse((float)x);
    if (sizeof(real) == 8) y *= 2 - x * y;
    return y * (2 - x * y);
}

// Two rows of the matrix that is left, at and below a diagonal entry k, and what makes the second a row of the factor: minus
// `share` times the first.
struct Pivots {
    real first, second, first_inverse, second_inverse, share;
    Pivots() = default;
    __device__ __forceinline__ Pivots(const real* row, int k) {
        first = row[k];
        first_inverse = inverse_of(first);
        share = row[k + 1] * first_inverse;
        second = row[STRIDE + k + 1] - share * row[k + 1];
        second_inverse = inverse_of(second);
    }
};

// G becomes the rows of its own upper factor; false where a pivot is not above `least`.
__device__ bool factor(real* G, int n, real least, int t) {
    constexpr int AT_ONCE = TEAM / ACROSS, UNROLLED = 4;
    bool broken = false;
    for (int k = 0; k < n; k += 2) {  // right-looking, from the diagonal's chunk on; pairs of rows become the factor's at the end
        const real* row = G + k * STRIDE;
        const Pivots pivots(row, k);
        broken = broken || !(pivots.first > least) || !(pivots.second > least || k + 1 == n);
        for (int c = t % ACROSS; c < CHUNKS; c += ACROSS) {
            const Chunk first = reinterpret_cast<const Chunk*>(row)[c];
            Chunk second = reinterpret_cast<const Chunk*>(row + STRIDE)[c];
            #pragma unroll
            for (int v = 0; v < VEC; ++v) second.x[v] -= pivots.share * first.x[v];
            for (int i = k + 2 + t / ACROSS; i < n; i += UNROLLED * AT_ONCE) {
                Chunk below[UNROLLED];
                #pragma unroll
                for (int u = 0; u < UNROLLED; ++u)
                    if (const int j = i + u * AT_ONCE; j < n && c >= j / VEC) {
                        below[u] = reinterpret_cast<const Chunk*>(G + j * STRIDE)[c];
                        const real f = row[j] * pivots.first_inverse, g = (row[STRIDE + j] - pivots.share * row[j]) * pivots.second_inverse;
                        #pragma unroll
                        for (int v = 0; v < VEC; ++v) below[u].x[v] = below[u].x[v] - f * first.x[v] - g * second.x[v];
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
    for (int start = 0; start < n; start += 2 * AT_ONCE) {  // as often in all threads of a warp
        const int i = start + 2 * (t / ACROSS);
        Pivots pivots{};
        if (i < n) pivots = Pivots(G + i * STRIDE, i);
        const real scale = inverse_root(pivots.first), other_scale = inverse_root(pivots.second);
        __syncwarp();  // every thread of these rows has read the pivots
        for (int c = t % ACROSS; i < n && c < CHUNKS; c += ACROSS) {
            Chunk& first = reinterpret_cast<Chunk*>(G + i * STRIDE)[c];
            Chunk& second = reinterpret_cast<Chunk*>(G + (i + 1) * STRIDE)[c];
            #pragma unroll
            for (int v = 0; v < VEC; ++v) {
                const int j = c * VEC + v;
                const real rest = second.x[v] - pivots.share * first.x[v];
                second.x[v] = j <= i || i + 1 == n ? real(0) : (j == i + 1 ? pivots.second : rest) * other_scale;
                first.x[v] = j < i ? real(0) : (j == i ? pivots.first : first.x[v]) * scale;
            }
        }
    }
    team_sync();
    return !broken;
}

// G becomes the factor of what fill(s) leaves there, H 2^-e + s I in some basis; returns s. Entries are below 1: a shift of
// rounding size does for a semi-definite H, one above its norm for any.
template <class Fill>
__device__ __forceinline__ real factor_shifted(Fill fill, const real* M, real* G, const int* order, int n, const Size& size, real* scratch, int t) {
    real s = size.zero ? real(1) : real(n < 8 ? 8 : n) * real(EPS);
    for (bool again = false;; again = true) {  // a loop, so that the code is there once
        fill(s);
        const bool good = factor(G, n, real(0.25) * s, t);
        if (again || !together(!good)) return s;
        real norm = 0;
        for (int i = t; i < n && !good; i += TEAM) {
            real sum = 0;
            for (int j = 0; j < n; ++j) sum += fabs(entry(M, order, n, i, j, size.scale));
            norm = fmax(norm, sum);
        }
        norm = team_max(norm, scratch, t);
        if (!good) s = real(1.0625) * norm;
    }
}

// The eigenvalue of a row of this squared length, at the scale of M. What overflows becomes the largest number.
__device__ __forceinline__ real eigenvalue(real length, real s, const Size& size) {
    return fmin(fmax(ldexp(length - s, size.exponent), -real(LARGEST)), real(LARGEST));
}

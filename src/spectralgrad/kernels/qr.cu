// A = Q R of tall matrices (m, n), and Q times a matrix, by Householder reflections over the rows in pieces of HEIGHT.
//
// The first piece becomes the triangle R; each further piece is eliminated against it: its j-th reflector is 1 at row j of R and
// a column of the piece, so that the rest of R stays out of it. A warp owns COLUMNS columns of a piece, in registers, rows over
// its lanes. The owner of column j + 1 makes its reflector as soon as it has applied that of column j: one barrier a step.
//
// Every column is divided by a power of two near its largest entry, and the columns of R are multiplied by it in the end, all
// but a common power that `exponents` gets. Columns are taken in falling order of these sizes: for A = B D, D diagonal, the
// rows of R then fall too, and one-sided Jacobi on R^T finds small singular values accurate relative to themselves. R is
// written with its columns in the order of A.
//
// Compile-time: REAL (float or double), EPS, TINY (the smallest normal number), LARGEST, WARPS, COLUMNS (of a warp; WARPS * COLUMNS >= n), STEPS (rows of a lane;
// HEIGHT = 32 STEPS >= n).

#ifndef SHARED
#define SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
typedef long long int64;
typedef REAL real;

constexpr int HEIGHT = 32 * STEPS;
constexpr int THREADS = 32 * WARPS;
constexpr int BROKEN = 1 << 30;  // in the place of an exponent: a matrix with NaN or Inf

__device__ __forceinline__ real warp_sum(real x) {
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// A part of a column: the rows lane, lane + 32, ... of a piece.
struct Column {
    real x[STEPS];

    __device__ __forceinline__ void load(const real* from, int rows, int lane) {
        #pragma unroll
        for (int r = 0; r < STEPS; ++r) x[r] = lane + 32 * r < rows ? from[lane + 32 * r] : real(0);
    }

    __device__ __forceinline__ real dot(const Column& other) const {
        real sum = 0;
        #pragma unroll
        for (int r = 0; r < STEPS; ++r) sum += x[r] * other.x[r];
        return sum;
    }

    __device__ __forceinline__ void take(const Column& other, bool really) {  // by selection: an index would need memory
        #pragma unroll
        for (int r = 0; r < STEPS; ++r) x[r] = really ? other.x[r] : x[r];
    }

    __device__ __forceinline__ void add(real factor, const Column& other) {
        #pragma unroll
        for (int r = 0; r < STEPS; ++r) x[r] += factor * other.x[r];
    }
};

// Makes the reflector of column j from x, into `buffer` (HEIGHT + 1 numbers, the last is tau) and to memory. In the first piece it
// is 1 at row j of the piece, and `diagonal` is null; later that 1 belongs to R, whose entry is *diagonal.
__device__ __forceinline__ void reflect(Column& x, real* diagonal, int j, int rows, real* buffer, real* reflector, real* tau, int lane) {
    real top = 0, sum = 0;
    #pragma unroll
    for (int r = 0; r < STEPS; ++r) {
        const int row = lane + 32 * r;
        if (diagonal || row > j) sum += x.x[r] * x.x[r];
        if (!diagonal && row == j) top = x.x[r];
    }
    sum = warp_sum(sum);
    top = diagonal ? *diagonal : warp_sum(top);
    const bool zero = !(sum > real(TINY) / real(EPS));  // squares that lost digits would make no reflection; the column was of size 1
    const real beta = zero ? top : -copysign(sqrt(top * top + sum), top);
    const real inverse = zero ? real(0) : 1 / (top - beta), t = zero ? real(0) : (beta - top) / beta;
    __syncwarp();  // every lane has read the diagonal
    #pragma unroll
    for (int r = 0; r < STEPS; ++r) {
        const int row = lane + 32 * r;
        const real v = diagonal || row > j ? x.x[r] * inverse : real(row == j);
        buffer[row] = v;
        if (row < rows) reflector[row] = v;
        if (!diagonal && row == j) x.x[r] = beta;
    }
    if (lane == 0) {
        buffer[HEIGHT] = *tau = t;
        if (diagonal) *diagonal = beta;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
factor(const real* __restrict__ A, real* __restrict__ reflectors, real* __restrict__ taus, real* __restrict__ R, int* __restrict__ exponents,
       int m, int n, int64 matrix_stride, int64 row_stride, int64 column_stride) {
    SHARED(shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pieces = (m + HEIGHT - 1) / HEIGHT;
    const int64 matrix = blockIdx.x;
    real* triangle = reinterpret_cast<real*>(shared);  // R, column by column
    real* buffers = triangle + n * n;
    int* size = reinterpret_cast<int*>(buffers + 2 * (HEIGHT + 1));  // exponent of each column
    int* order = size + n;
    A += matrix * matrix_stride;
    reflectors += matrix * m * n;
    taus += matrix * pieces * n;
    R += matrix * n * n;

    bool broken = false;
    for (int j = warp; j < n; j += WARPS) {
        real largest = 0;
        for (int i = lane; i < m; i += 32) {
            const real x = fabs(A[i * row_stride + j * column_stride]);
            broken = broken || !(x <= real(LARGEST));
            largest = fmax(largest, x);
        }
        #pragma unroll
        for (int step = 16; step > 0; step /= 2) largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        int e = 0;
        if (largest > 0 && largest <= real(LARGEST)) frexp(largest, &e);
        if (lane == 0) size[j] = largest > 0 ? e : -BROKEN;  // an empty column is the smallest
    }
    if (__syncthreads_or(broken)) {
        for (int k = threadIdx.x; k < n * n; k += THREADS) R[k] = sqrt(real(-1));
        if (threadIdx.x == 0) exponents[matrix] = BROKEN;
        return;
    }
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int rank = 0;
        for (int j = 0; j < n; ++j) rank += size[j] > size[i] || (size[j] == size[i] && j < i);
        order[rank] = i;
    }
    __syncthreads();
    const int common = size[order[0]] == -BROKEN ? 0 : size[order[0]];

    for (int first = 0, piece = 0; first < m; first += HEIGHT, ++piece) {
        const int rows = min(HEIGHT, m - first);
        Column x[COLUMNS];
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const int k = warp + c * WARPS, j = k < n ? order[k] : 0;
            #pragma unroll
            for (int r = 0; r < STEPS; ++r) {
                const int64 i = first + lane + 32 * r;
                x[c].x[r] = k < n && i < m ? ldexp(A[i * row_stride + j * column_stride], size[j] == -BROKEN ? 0 : -size[j]) : real(0);
            }
        }
        real* reflector = reflectors + (int64)first * n;
        real* tau = taus + piece * n;
        if (warp == 0) reflect(x[0], piece ? triangle : nullptr, 0, rows, buffers, reflector, tau, lane);
        __syncthreads();
        for (int j = 0; j < n; ++j) {
            const real* buffer = buffers + j % 2 * (HEIGHT + 1);
            real* next = buffers + (j + 1) % 2 * (HEIGHT + 1);
            Column v;
            v.load(buffer, HEIGHT, lane);
            const real t = buffer[HEIGHT];
            real w[COLUMNS];
            #pragma unroll
            for (int c = 0; c < COLUMNS; ++c) w[c] = v.dot(x[c]);
            #pragma unroll
            for (int step = 16; step > 0; step /= 2)
                #pragma unroll
                for (int c = 0; c < COLUMNS; ++c) w[c] += __shfl_xor_sync(0xffffffffu, w[c], step);
            #pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                const int k = warp + c * WARPS;
                if (k > j && k < n) {
                    if (piece) {
                        const real entry = triangle[k * n + j];
                        w[c] += entry;
                        __syncwarp();  // every lane has read the entry
                        if (lane == 0) triangle[k * n + j] = entry - t * w[c];
                    }
                    x[c].add(-t * w[c], v);
                }
            }
            const int k = j + 1;
            if (k < n && k % WARPS == warp) {  // v has done its work: it takes the next column, whichever register holds it
                #pragma unroll
                for (int c = 0; c < COLUMNS; ++c) v.take(x[c], c == k / WARPS);
                reflect(v, piece ? triangle + k * n + k : nullptr, k, rows, next, reflector + (int64)k * rows, tau + k, lane);
                #pragma unroll
                for (int c = 0; c < COLUMNS; ++c) x[c].take(v, c == k / WARPS);
            }
            __syncthreads();
        }
        if (piece == 0) {
            #pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                const int k = warp + c * WARPS;
                #pragma unroll
                for (int r = 0; r < STEPS; ++r) {
                    const int row = lane + 32 * r;
                    if (k < n && row < n) triangle[k * n + row] = row <= k ? x[c].x[r] : real(0);
                }
            }
            __syncthreads();
        }
    }
    for (int k = threadIdx.x; k < n * n; k += THREADS) {
        const int row = k / n, j = k % n, column = order[j];
        R[row * n + column] = size[column] == -BROKEN ? real(0) : ldexp(triangle[j * n + row], size[column] - common);
    }
    if (threadIdx.x == 0) exponents[matrix] = common;
}

// out (m, n), at strides inside a matrix, = Q times (U; 0), U (n, n).
extern "C" __global__ void __launch_bounds__(THREADS)
apply(const real* __restrict__ reflectors, const real* __restrict__ taus, const int* __restrict__ exponents, const real* __restrict__ U,
      real* __restrict__ out, int m, int n, int out_row, int out_column) {
    SHARED(shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pieces = (m + HEIGHT - 1) / HEIGHT;
    const int64 matrix = blockIdx.x;
    real* top = reinterpret_cast<real*>(shared);  // the rows of R, column by column
    reflectors += matrix * m * n;
    taus += matrix * pieces * n;
    U += matrix * n * n;
    out += matrix * m * n;
    if (exponents[matrix] == BROKEN) {
        for (int64 k = threadIdx.x; k < (int64)m * n; k += THREADS) out[k] = sqrt(real(-1));
        return;
    }
    for (int k = threadIdx.x; k < n * n; k += THREADS) top[k % n * n + k / n] = U[k];
    __syncthreads();
    for (int piece = pieces - 1; piece >= 0; --piece) {  // no barrier any more: a warp meets its own columns alone
        const int first = piece * HEIGHT, rows = min(HEIGHT, m - first);
        const real* reflector = reflectors + (int64)first * n;
        const real* tau = taus + piece * n;
        Column y[COLUMNS], v;
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const int k = warp + c * WARPS;
            if (piece || k >= n) y[c].load(top, 0, lane); else y[c].load(top + k * n, n, lane);
        }
        for (int j = n - 1; j >= 0; --j) {
            v.load(reflector + (int64)j * rows, rows, lane);
            const real t = tau[j];
            real w[COLUMNS];
            #pragma unroll
            for (int c = 0; c < COLUMNS; ++c) w[c] = v.dot(y[c]);
            #pragma unroll
            for (int step = 16; step > 0; step /= 2)
                #pragma unroll
                for (int c = 0; c < COLUMNS; ++c) w[c] += __shfl_xor_sync(0xffffffffu, w[c], step);
            #pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                const int k = warp + c * WARPS;
                if (piece && k < n) {
                    const real entry = top[k * n + j];
                    w[c] += entry;
                    __syncwarp();  // every lane has read the entry
                    if (lane == 0) top[k * n + j] = entry - t * w[c];
                }
                y[c].add(-t * w[c], v);
            }
        }
        __syncwarp();  // what one lane wrote into `top` is read by others
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const int k = warp + c * WARPS;
            #pragma unroll
            for (int r = 0; r < STEPS; ++r) {
                const int row = lane + 32 * r;
                if (k < n && row < rows) out[(int64)(first + row) * out_row + (int64)k * out_column] = y[c].x[r];
            }
        }
    }
}

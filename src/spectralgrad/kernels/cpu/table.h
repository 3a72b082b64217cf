// What the kernels of one instruction set are called by.

#pragma once
#include <stdint.h>

// What a kernel says of the matrices it has seen; several together are added up.
enum Status {
    NOT_FINITE = 1,      // NaN or Inf came in: such a matrix gives NaN
    NOT_SYMMETRIC = 2,   // an entry differs from the one across the diagonal: what counts is the symmetric part
    NOT_CONVERGED = 4,   // gives NaN
    NO_MEMORY = 8,       // nothing was computed
    OUTSIDE = 32,        // an eigenvalue that may lie outside the domain of the function: look closer
    TIED = 64,           // a gradient asked for eigenvectors of a tie, beyond rounding, and got nothing of it
    FAR = 16,            // a spectrum so far from 1, or so wide, that digits may be lost: plain torch does it with care
};

enum Kernel { EIGH, EIGVALSH, PULLBACK, VALUE, DERIVATIVE, SVD, POLAR, POLAR_DERIVATIVE, KERNELS };

struct Call {
    int n, m;            // columns and rows
    int kind;            // of a rule or a function
    int layout;          // bit i: input i lies in columns
    const void* in[6];
    void* out[4];
    double number[6];
};

// Computes matrices first, ..., last - 1 of a batch. Returns a status.
typedef int (*Work)(const Call&, int64_t first, int64_t last);

struct Table {
    int bytes;                  // of a vector
    Work work[KERNELS][2];      // for float and double
};

// What the kernels of one block a matrix share: shared memory, and numbers that are read 16 bytes at a time.

#pragma once
#ifndef SHARED
#define SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
typedef long long int64;
typedef REAL real;

struct alignas(16) Four { real x[4]; };

"""Native kernels for the CPU: C++ with vector extensions, one matrix in each lane, called by ctypes. Forward only.

    eigh           eigenpairs, or eigenvalues alone, of symmetric matrices     torch.linalg.eigh
    pullback       the gradient of a matrix from its eigenpairs'               kernels.eigenpairs, linalg.eigh
    functions      V f(w) V^T and its derivative                               kernels.spectral, linalg.functions
    svd            singular triplets                                           torch.linalg.svd
    polar          polar factors and rotations of 2 x 2 and 3 x 3 matrices;    kernels.small_svd, kernels.polar, linalg.polar
                   the derivative of square ones
    load           the library, or why it is not there
    build          compiles it: when the package is installed, and by `make native`
    team           how many threads share a batch
    inputs         what kernels take

What each file of C++ is about stands at its top; table.h and library.cpp are where Python comes in.
"""

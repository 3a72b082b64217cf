"""GPU kernels, forward only, called inside our autograd Functions. Each has a twin that does the same in plain torch.

Entry points, with the twin that answers where a kernel does not run:

    moments        mean and scatter of groups of channels (Triton)             nn.passes, block by block
    affine         passes with one matrix for each group of channels (Triton)  nn.passes, block by block
    jacobi         eigenpairs of symmetric matrices (CUDA C++)                 linalg.solvers.Jacobi
    syev           cuSOLVER's batched eigensolver, any size and dtype          torch.linalg.eigh
    svd            singular triplets, after qr where they are large (CUDA C++) torch.linalg.svd
    small_svd      triplets and polar factors up to 4 x 4 (CUDA C++)           torch.linalg.svd, linalg.polar
    spectral       V f(w) V^T and its derivative (CUDA C++)                    linalg.functions with linalg.elementary
    eigenpairs     the gradient of a matrix from its eigenpairs' (CUDA C++)    linalg.eigh with linalg.decomposition
    polar          the derivative of polar factors, rotations (CUDA C++)       linalg.polar
    clouds         the motion between two clouds, and its gradient (CUDA C++)  align.clouds
    scale          exponents of matrices, and their powers of two (CUDA C++)   linalg.scaling
    power          the papers' power iterations and gradients (CUDA C++)       linalg.power
    whitening      a training step of ZCA whitening out of the first four      the general node of nn.passes
    graphs         functions of tensors that a GPU replays                     the function itself
    ops            functions that torch.compile takes as one operator
    availability   which kernels run on a device, and why the others do not

Internals: `tiles` shares channels and samples out and says what fits; `launches` keeps Triton launches;
`nvrtc` compiles CUDA C++, `cubins` keeps what was compiled, `launcher` launches it; `buffers`
is the memory that kernels read and fill, `strided` says how batches lie in it; `devices` is what all of them ask of a
device. The code of the devices: triton_*.py, imported when first needed, *.cu, and *.cuh, which those share.
"""

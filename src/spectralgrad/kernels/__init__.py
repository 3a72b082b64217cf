"""GPU kernels, forward only, called inside our autograd Functions. Each has a twin that does the same in plain torch.

Entry points, with the twin that answers where a kernel does not run:

    moments        mean and scatter of groups of channels (Triton)             grouped_moments_twin, beside it
    affine         passes with one matrix for each group of channels (Triton)  transform_twin and so on, beside them
    jacobi         eigenpairs of symmetric matrices (CUDA C++)                 linalg.solvers.Jacobi
    syev           cuSOLVER's batched eigensolver, any size and dtype          torch.linalg.eigh
    spectral       V f(w) V^T and its derivative (CUDA C++)                    linalg.functions with linalg.scalars
    scale          exponents of matrices, and their powers of two (CUDA C++)   linalg.scaling
    power          the papers' power iterations and gradients (CUDA C++)       linalg.power
    whitening      a training step of ZCA whitening out of the first four      the general node of nn.nodes
    graphs         functions of tensors that a GPU replays                     the function itself
    ops            functions that torch.compile takes as one operator
    availability   which kernels run on a device, and why the others do not

Internals: `tiles` shares channels and samples out and says what fits; `launches` keeps Triton launches; `affine_launches`
has the launches of `affine`; `nvrtc` compiles and launches CUDA C++, and `cubins` keeps what was compiled; `buffers` is the
memory that kernels read and fill; `devices` is what all of them ask of a device. The code of the devices: triton_*.py,
imported when first needed, *.cu, and *.cuh, which those share.
"""

"""Every case that `spectralgrad bench` measures by itself, with its target. Nothing here computes.

What it measures only when asked stands in on_request.py. A target on the CPU holds for two threads or more: `eigh` and `svd`
spread a batch over them, which torch does not.
"""

from . import on_request
from .case import AS_FAST, Case

__all__ = ["CPU", "GPU", "QUICK_CPU", "QUICK_GPU", "SECTIONS", "Case", "cases"]

SECTIONS = {
    "eigh": "torch.linalg.eigh (on CUDA: cuSOLVER's XsyevBatched) / sg.eigh, forward, float32 covariances of 4d samples",
    "eigh64": "the same in float64",
    "eigh_complex": "the same, complex Hermitian",
    "accuracy": "sg.eigh: LAPACK's ratios and the relative error of every eigenvalue, worst over all batches",
    "backward": "backward alone of M^(-1/2): torch's autograd through V f(L) V^T / sg.inv_sqrtm",
    "inv_sqrtm": "forward + backward of M^(-1/2): torch's autograd through V f(L) V^T / sg.inv_sqrtm",
    "whitening": "forward + backward: DecorrelatedBatchNorm2d / BatchNorm2d",
    "resnet": "training step of ResNet-18, whitening after conv1 / batch norm there",
    "pooling": "CovariancePool2d, forward + backward, and the gradient that reaches the features",
    "graph": "loss of a captured training step with whitening, replayed, against its own eager run",
}


def _eigh(targets: dict[int, dict[int, float]], section: str = "eigh", dtype: str = "float32") -> list[Case]:
    return [
        Case(section, d, batch, target, dtype=dtype) for d, by_batch in targets.items() for batch, target in by_batch.items()
    ]


def _accuracy(timed: list[Case]) -> list[Case]:
    sizes = dict.fromkeys(case.d for case in timed)
    batches = {d: tuple(case.batch for case in timed if case.d == d) for d in sizes}
    return [Case("accuracy", d, max(batches[d]), batches=batches[d]) for d in sizes]


# The worst that the accuracy may be, by what is measured. LAPACK's own tests fail beyond 20 to 50.
ACCURACY = {"residual": 10.0, "orthogonality": 10.0, "eigenvalues, scaled": 1e-4, "eigenvalues, rotated": 3e-3}
POOLING_GRADIENT = 1e-3
ACCURATE = 4096  # matrices of a batch whose accuracy is looked at, at the most

# Ratios to XsyevBatched. Small batches of small matrices are bound by the call from Python.
_TINY = {1: 2.0, 16: 2.0, 256: 2.5, 4096: 2.5, 30_000: 6.0}
_SMALL = {1: 2.0, 16: 2.0, 256: 2.5, 4096: 6.0, 30_000: 6.0}
_GPU_EIGH = _eigh(
    {
        3: {**_TINY, 1_000_000: 6.0},
        8: _TINY,
        16: _SMALL,
        32: _SMALL,
        64: {1: 2.0, 16: 2.0, 256: 2.5, 4096: 2.5},
        100: {1: 2.0, 16: 1.5, 256: 1.5},
        128: {1: 2.0, 16: 1.5, 256: 1.5},
    }
)
_GPU_LARGE = [
    Case("eigh", d, batch, kind=AS_FAST)
    for d, batches in {192: (1, 256), 256: (1, 256), 512: (1, 16)}.items()
    for batch in batches
]
_GPU_EIGH64 = [
    *_eigh({d: dict.fromkeys((1, 16, 256, 4096), 2.0) for d in (3, 16, 32, 64)}, "eigh64", "float64"),
    *(Case("eigh64", d, batch, dtype="float64", kind=AS_FAST) for d, batch in ((128, 16), (128, 256), (256, 16), (512, 16))),
]
_GPU_COMPLEX = [
    Case("eigh_complex", d, batch, dtype=dtype, kind=AS_FAST)
    for dtype, d, batch in (("complex64", 16, 256), ("complex64", 64, 256), ("complex128", 128, 16))
]
_CPU_EIGH = _eigh({4: {256: 0.9}, 8: {256: 0.9}, 16: {256: 1.3}, 32: {256: 1.6}, 64: {256: 1.6}, 128: {256: 1.6}})
_MAPS = (128, 64, 32, 32)
_IMAGES = (128, 3, 32, 32)

GPU = [
    *_GPU_EIGH,
    *_GPU_LARGE,
    *_GPU_EIGH64,
    *_GPU_COMPLEX,
    *_accuracy([case for case in _GPU_EIGH if case.batch <= ACCURATE]),
    *(Case("backward", d, batch, 8.0) for d in (4, 8, 16, 32, 64, 128) for batch in (1, 16, 256)),
    Case("inv_sqrtm", 256, 256, 50.0),
    *(Case("whitening", d, 128, 2.0, _MAPS, patience=2.0) for d in (4, 8, 16, 32, 64)),
    *(Case("resnet", d, 128, 1.08, _IMAGES, patience=4.0) for d in (4, 16, 64)),
    Case("pooling", 256, 128, 10.0, (128, 256, 14, 14)),
    Case("graph", 16, 64, 1e-6, (64, 1, 8, 8)),  # last: a capture that fails may leave the device unwell
]
CPU = [
    *_CPU_EIGH,
    *_accuracy(_CPU_EIGH),
    *(Case("inv_sqrtm", d, 256, 1 / 0.7) for d in (32, 64, 128)),
    *(
        Case("whitening", d, 128, 4.0 if d <= 16 else 5.5, _MAPS, kind=kind)
        for kind in ("", "channels_last")
        for d in (4, 16, 64)
    ),
]

# --quick: something of each section, in seconds. The first two keep their targets; the rest is too small to have one.
_QUICK_CPU_EIGH = _eigh({4: {256: 0.9}, 32: {256: 1.6}})
QUICK_CPU = [
    *_QUICK_CPU_EIGH,
    *_accuracy(_QUICK_CPU_EIGH),
    Case("backward", 16, 16),
    Case("inv_sqrtm", 32, 256, 1 / 0.7),
    Case("whitening", 16, 16, None, (16, 16, 8, 8)),
    Case("resnet", 4, 8, None, (8, 3, 8, 8), width=8),
    Case("pooling", 16, 4, None, (4, 16, 3, 3)),
]
_QUICK_GPU_EIGH = _eigh({16: {256: 2.5}, 64: {256: 2.5}})
QUICK_GPU = [
    *_QUICK_GPU_EIGH,
    *_accuracy(_QUICK_GPU_EIGH),
    Case("backward", 64, 256, 8.0),
    *(case for case in GPU if case.section == "whitening" and case.d == 16),
    *(case for case in GPU if case.section == "resnet" and case.d == 16),
    *(case for case in GPU if case.section in ("pooling", "graph")),
]


def cases(gpu: bool, quick: bool, only: list[str] | None = None) -> list[Case]:
    """The cases to measure, in order; ``only`` names sections, and those of on_request.py are measured only so.

    >>> [case.d for case in cases(gpu=False, quick=False, only=["inv_sqrtm"])]
    [32, 64, 128]
    """
    chosen = (QUICK_GPU if quick else GPU) if gpu else (QUICK_CPU if quick else CPU)
    asked = on_request.cases(gpu, quick) if only else []
    return [case for case in [*chosen, *asked] if not only or case.section in only]

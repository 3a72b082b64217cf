"""The cases of the section `cpu`: work for the native kernels of the CPU, with what is asked of AVX-512 and of AVX2.

Targets are how many times faster than the other way; for single matrices how many times its time ours may take.
"""

from .case import Case

SECTION = "cpu"
# What is done: forward alone, or forward + backward.
EIGH, EIGVALSH, SVD = "eigh", "eigvalsh", "svd"
PAIRS, SPECTRAL_MAP = "eigh, backward", "spectral_map, backward"
ROOTS = ("inv_sqrtm, backward", "sqrtm, backward", "logm, backward")
PROCRUSTES, KABSCH = "procrustes special, backward", "kabsch, backward"
ONE = "inv_sqrtm"  # forward; for single matrices

Targets = tuple[float, float]  # AVX-512, AVX2
_NUMBERS, _MOST = 1_500_000, 200_000  # entries and matrices of a batch: torch is to take half a second


def _batch(n: int) -> int:
    return min(_NUMBERS // (n * n), _MOST)


def _case(function: str, n: int, batch: int, targets: Targets | None = None, dtype: str = "float32", m: int = 0) -> Case:
    """Of ``batch`` matrices (m, n), square if m is not given, or clouds of m points."""
    first = targets[0] if targets else None
    return Case(SECTION, n, batch, first, (m or n, n), function=function, dtype=dtype, numbers=(targets or ())[1:])


def _at_sizes(function: str, sizes: tuple[int, ...], *by_level: tuple[float, ...], dtype: str = "float32") -> list[Case]:
    targets = zip(*by_level, strict=True)
    return [_case(function, n, _batch(n), (a, b), dtype) for n, (a, b) in zip(sizes, targets, strict=True)]


_SIZES = (2, 3, 4, 8, 16, 32, 64)
_SMALL = (3, 4, 8, 16)
CPU = [
    *_at_sizes(EIGH, _SIZES, (100, 80, 55, 45, 35, 22, 12), (70, 50, 35, 25, 18, 12, 6)),
    *_at_sizes(EIGH, _SIZES, (70, 50, 28, 22, 16, 11, 7), (45, 28, 16, 12, 9, 6, 4), dtype="float64"),
    *_at_sizes(EIGVALSH, (3, 8, 16), (60, 40, 30), (40, 25, 18)),
    *_at_sizes(PAIRS, (3, 4, 8, 16, 32), (30, 25, 18, 12, 8), (20, 16, 12, 8, 5)),
    *(case for root in ROOTS for case in _at_sizes(root, _SMALL, (60, 40, 25, 18), (40, 25, 15, 10))),
    *_at_sizes(SPECTRAL_MAP, _SMALL, (15, 12, 10, 8), (15, 12, 10, 8)),
    *_at_sizes(SVD, _SMALL, (80, 55, 35, 25), (50, 33, 20, 14)),
    _case(SVD, 8, 2900, (18, 12), m=64),
    _case(PROCRUSTES, 3, 100_000, (60, 40)),
    _case(KABSCH, 3, 1000, (5, 4), m=100),
    _case(KABSCH, 3, 100, (4, 3), m=1000),
    _case(KABSCH, 3, 10_000, (12, 8), m=20),
    _case(EIGH, 4, 1, (1 / 1.6, 1 / 1.6)),
    _case(SVD, 4, 1, (1 / 1.6, 1 / 1.6)),
    _case(EIGH, 16, 1),
    *(_case(function, n, 1, (1 / x, 1 / x)) for function in (PAIRS, ROOTS[0]) for n, x in ((4, 1.5), (16, 1.0))),
    _case(PAIRS, 8, 16, (6, 4)),
    _case(PAIRS, 64, 256, (5, 3)),
    # Where LAPACK wins, and we are to lose little around it.
    _case(EIGH, 128, 1, (0.7, 0.7)),
    _case(PAIRS, 128, 1, (0.7, 0.7)),
    _case(EIGH, 256, 20, (0.95, 0.95)),
    _case(SVD, 128, 1, (0.7, 0.7)),
]
CPU_QUICK = [_case(EIGH, 3, 1000), _case(PAIRS, 8, 100), _case(SVD, 3, 1000), _case(KABSCH, 3, 10, m=20)]

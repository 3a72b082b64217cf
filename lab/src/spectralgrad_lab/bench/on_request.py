"""The sections that are measured only when `--only` names them: they are slow, or answer a question of their own."""

import itertools

import torch

from . import native_cases, subjects
from .case import Case
from .inputs import KINDS_OF_SAMPLES, kinds

SECTIONS = {
    "gradients": "relative error of gradients, second derivatives and values against 30 to 80 digits, every method",
    "roots": "forward + backward of M^(-1/2), float32, every method / torch.linalg.eigh + autograd: above 1 is slower",
    "roots64": "the same in float64",
    "digits": "trainings on digits with whitening after conv1: how many finish, by rule, d and eps",
    "style": "a deep style transfer and its parts; the share of the decompositions",
    "host": "where the host time of a whitening step goes",
    "kernels": "device time of the passes of a whitening layer, from a CUDA graph",
    "layouts": "whitening / batch norm by dtype and memory format: by events, by the wall clock, as a CUDA graph",
    "newton": "roots by products, products in float64 / in float32; a batched product; pooling of a small map",
    "power": "milliseconds of a whitening step by the papers' power iterations, 19 steps, beside the exact gradient",
    "svd": "torch.linalg.svd / sg.svd, forward, random matrices: how many times faster",
    "polar": "forward + backward of polar factors: milliseconds, and torch's autograd through its svd beside",
    "networks": "training step of ResNet-18, eager, compiled and as a CUDA graph: whitening / batch norm; treatments / none",
    "uses": "the usual way / ours: Shampoo's and SOAP's step; alignment and Frechet's distance, forward + backward",
    "cpu": "native kernels of the CPU, by instructions: the time of torch, or roma, / ours; backward: with the forward pass",
    "settings": "the passes of a whitening layer with other settings than those of their tables: the three best",
}
PROMISES = ("gradients", "digits", "style")  # a miss there is a failure, exit code 1; elsewhere the table says it
STEMS = {"gradients": "core-accuracy", "roots": "core-speed"}  # of their records; else `bench`

MATRIX_ROOTS = ("sqrtm", "inv_sqrtm")
SINGULAR_SAMPLES = "powm(X X^T/n, 0.5) by X"
ZCA = "ZCA matrix by X"
ZCA_OF_SAMPLES = "ZCA matrix of samples"
OF_ROOTS = (*MATRIX_ROOTS, SINGULAR_SAMPLES, ZCA)  # the functions of `gradients` that every method has a column for
LIMIT_FROM_SAMPLES = 1e-6  # powm(X X^T / n, 0.5) with n < d and no eps, float64
RULES = ("Exact", "Taylor(9)", "Analytic")
PASSES = ("moments", "transform", "sums", "combine")
POWER_KINDS = ("SVD-PI", "PI")
POWER_TARGETS = {16: 2.0, 64: 8.0}  # milliseconds, by d
SHAMPOO, BY_PRODUCTS, SOAP = "Shampoo step", "Shampoo step, NewtonSchulz()", "SOAP step"
PROCRUSTES, KABSCH, FID = "procrustes, special", "kabsch", "frechet_distance_of"
FID_WAYS = "eigenvalues of covariances"  # the usual way
FID_ERROR = 1e-4  # of value and gradient in float32
POINTS = 32  # of a cloud
GROUP_SIZES = (4, 8, 16, 32, 64)
MAPS = (128, 64, 32, 32)


def _gradients(sizes: tuple[int, ...]) -> list[Case]:
    largest, dtypes = 16, ("float64", "float32")
    cases = [
        Case("gradients", d, 1, LIMIT_FROM_SAMPLES, function=SINGULAR_SAMPLES, dtype="float64", kind="n = d/2, no eps")
        for d in sizes
    ]
    for dtype, function in itertools.product(dtypes, MATRIX_ROOTS):
        for kind, d in itertools.product(kinds(getattr(torch, dtype)), sizes):
            cases.append(Case("gradients", d, largest, batches=(1, largest), function=function, dtype=dtype, kind=kind))
    for dtype, kind, d in itertools.product(dtypes, KINDS_OF_SAMPLES, sizes):
        cases.append(Case("gradients", d, 1, function=ZCA, dtype=dtype, kind=kind))
    return cases


def _roots(section: str, dtype: str, sizes: tuple[int, ...], batches: tuple[int, ...]) -> list[Case]:
    # Two of the usual times: a ratio near 1 needs more rounds.
    matrices = [
        Case(section, d, batch, function="inv_sqrtm", dtype=dtype, patience=2.0)
        for d, batch in itertools.product(sizes, batches)
    ]
    return matrices + [Case(section, d, 1, function=ZCA_OF_SAMPLES, dtype=dtype, patience=2.0) for d in sizes]


def _digits(dimensions: tuple[int, ...], eps: tuple[float, ...], steps: int, seeds: int) -> list[Case]:
    return [
        Case("digits", d, 64, None if rule == "Analytic" else 1.0, kind=rule, eps=eps, steps=steps, seeds=seeds)
        for rule, d in itertools.product(RULES, dimensions)
    ]


def _kernels(sizes: tuple[int, ...]) -> list[Case]:
    ways = (("tf32x3", "contiguous"), ("tf32x3", "channels_last"), ("ieee", "contiguous"))
    return [Case("kernels", d, 128, shape=MAPS, function=mode, kind=layout) for d in sizes for mode, layout in ways]


def _layouts(sizes: tuple[int, ...]) -> list[Case]:
    formats = itertools.product(("float32", "bfloat16"), ("contiguous", "channels_last"), sizes)
    return [Case("layouts", d, 128, 2.0, MAPS, dtype=dtype, kind=layout) for dtype, layout, d in formats]


def _newton(sizes: tuple[int, ...], batches: tuple[int, ...]) -> list[Case]:
    products = [Case("newton", n, batch, function="bmm") for n, batch in ((256, 256), (196, 128))]
    roots = [Case("newton", n, batch, function="inv_sqrtm") for n in sizes for batch in batches]
    milliseconds = Case("newton", 256, 256, 20.0, function="milliseconds of inv_sqrtm")
    return [*products, *roots, milliseconds, Case("newton", 256, 128, 15.0, (128, 256, 7, 7), function="CovariancePool2d")]


def _power(sizes: tuple[int, ...]) -> list[Case]:
    return [Case("power", d, 128, POWER_TARGETS[d], MAPS, kind=kind) for kind in POWER_KINDS for d in sizes]


def _svd(targets: dict[tuple[int, int, int], float | None]) -> list[Case]:
    """Of (batch, m, n), with the target in float32, if there is one; float64 is to reach a third of it."""
    return [
        Case("svd", min(m, n), batch, target and target / share, (m, n), function="svd", dtype=dtype)
        for (batch, m, n), target in targets.items()
        for dtype, share in (("float32", 1), ("float64", 3))
    ]


def _polar(targets: dict[tuple[int, int], float | None]) -> list[Case]:
    """Of (batch, n), with the milliseconds that each may take in float32, if it is known."""
    functions = ("polar", "procrustes", "procrustes, special")
    return [Case("polar", n, batch, ms, (n, n), function=name) for (batch, n), ms in targets.items() for name in functions]


def _networks(wanted: dict[tuple[str, str, int], float | None], shape: tuple[int, ...], width: int = 64) -> list[Case]:
    """By (way, what is inside, d): one norm whitened, or all, from the last step's eigenvectors too; power iterations; or
    treatments of the first convolution."""
    return [
        Case("networks", d, shape[0], target, shape, width, function=way, kind=kind, patience=3.0)
        for (way, kind, d), target in wanted.items()
    ]


def _uses(
    weights: dict[int, int], aligned: dict[int, float | None], samples: tuple[int, int], fid: float | None
) -> list[Case]:
    """Of B weights d x d; numbers of clouds with the ratio to roma that is asked for; samples and their features."""
    return [
        *(Case("uses", d, batch, function=name) for name in (SHAMPOO, BY_PRODUCTS, SOAP) for d, batch in weights.items()),
        *(Case("uses", 3, batch, ratio, (3, 3), function=PROCRUSTES) for batch, ratio in aligned.items()),
        *(Case("uses", 3, batch, ratio, (POINTS, 3), function=KABSCH) for batch, ratio in aligned.items()),
        Case("uses", samples[1], samples[0], fid, samples, function=FID),
    ]


def _settings(sizes: tuple[int, ...]) -> list[Case]:
    return [Case("settings", d, 128, shape=MAPS, kind=name) for d in sizes for name in PASSES]


IMAGES = (128, 3, 32, 32)
# How many times a step may take that of batch norm, or of whitening alone; for power iterations the milliseconds they add.
NETWORKS: dict[tuple[str, str, int], float | None] = {
    ("eager float32", "one", 16): None,
    ("eager float32", "all", 16): None,
    ("eager", "one", 16): None,
    ("eager", "all", 16): 1.6,
    ("graph", "one", 16): None,
    ("graph", "one", 64): None,
    ("graph", "all", 16): 1.35,
    ("graph", "all", 64): 2.4,
    ("graph", "all, warm start", 64): None,
    ("graph", "SVD-PI", 16): 2.0,
    ("graph", "SVD-PI", 64): 8.0,
    ("graph", "PI", 16): 2.0,
    ("graph", "PI", 64): 8.0,
    ("graph", "NOG", 64): 1.1,
    ("graph", "OLR", 64): 1.1,
    ("graph", "OW", 64): 1.1,
    ("graph", "NOG + OW + OLR", 64): 1.25,
    ("compile", "one", 16): 1.1,
    ("compile", "all", 16): 1.7,
}

# A style transfer by its size; dtype float16 is `--half`.
STYLE_GPU = [Case("style", 512, 1, 300.0), Case("style", 512, 1, 300.0, dtype="float16")]
CPU = [
    *_gradients((4, 16, 64, 128)),
    *subjects.cases(),
    *_roots("roots", "float32", (4, 8, 16, 32, 64, 128), (1, 16, 256)),
    *_roots("roots64", "float64", (4, 8, 16, 32, 64, 128), (1, 16, 256)),
    *_digits((4, 8, 16, 32, 64), (1e-2, 1e-3, 1e-4, 1e-5), steps=100, seeds=5),
    Case("style", 512, 1, 60e3),
    *_svd(dict.fromkeys(((256, 8, 8), (256, 64, 64), (64, 128, 128), (300, 900, 100)))),
    *_polar(dict.fromkeys(((10_000, 3), (256, 64)))),
    *_uses({32: 16, 128: 8, 512: 1}, {10_000: None, 100_000: None}, (500, 2048), 10.0),
    *native_cases.CPU,
]
CPU_QUICK = [
    *_gradients((4, 16)),
    *subjects.cases(quick=True),
    *_roots("roots", "float32", (4, 32), (1, 16)),
    *_roots("roots64", "float64", (4, 32), (1, 16)),
    *_digits((8, 64), (1e-2, 1e-5), steps=10, seeds=1),
    Case("style", 64, 1),  # too small for its targets
    *_svd({(256, 8, 8): None}),
    *_polar({(100, 3): None}),
    *_uses({16: 2}, {100: None}, (20, 64), None),
    *native_cases.CPU_QUICK,
]
GPU = [
    *STYLE_GPU,
    Case("host", 16, 128, shape=MAPS),
    *_kernels(GROUP_SIZES),
    *_layouts(GROUP_SIZES),
    *_newton((64, 128, 192, 256, 512), (16, 64, 256)),
    *_power((16, 64)),
    *_svd(
        {
            (256, 64, 64): 300.0,
            (64, 128, 128): 100.0,
            (300, 900, 100): 100.0,
            (100_000, 3, 3): 100.0,
            (1_000_000, 3, 3): 100.0,
        }
    ),
    *_polar({(1_000_000, 3): 3.0, (256, 64): 1.5}),
    *_networks(NETWORKS, IMAGES),
    *_uses({32: 256, 128: 64, 512: 8, 1024: 2}, {10_000: None, 100_000: 10.0}, (500, 2048), None),
    *_settings((16, 32, 64)),
]
GPU_QUICK = [
    *STYLE_GPU[:1],
    Case("host", 16, 128, shape=MAPS),
    *_kernels((16,)),
    *_layouts((16,)),
    *_newton((256,), (16,)),
    *_power((16,)),
    *_svd({(256, 64, 64): 300.0}),
    *_polar({(1_000_000, 3): 3.0}),
    *_networks(
        {("graph", "one", 4): None, ("graph", "all, warm start", 4): None, ("graph", "NOG", 4): 1.1}, (8, 3, 8, 8), width=8
    ),
    *_uses({32: 16}, {100_000: 10.0}, (100, 256), None),
    *_settings((16,)),
]


def cases(gpu: bool, quick: bool) -> list[Case]:
    """All of them, for the GPU or the CPU. Gradients, roots and digits are measured on the CPU alone.

    >>> sorted({case.section for case in cases(gpu=False, quick=True)})
    ['cpu', 'digits', 'gradients', 'polar', 'roots', 'roots64', 'style', 'svd', 'uses']
    """
    return (GPU_QUICK if quick else GPU) if gpu else (CPU_QUICK if quick else CPU)

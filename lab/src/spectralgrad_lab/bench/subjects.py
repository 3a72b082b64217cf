"""The cases of `gradients` beyond the two roots: powers, singular values, pencils, second derivatives. Nothing computes.

The first word of a case's function names the task; see gradients.py.
"""

import itertools

from .case import Case

ALPHAS = (-3, -2, -1, -0.5, -0.25, 0.1, 0.3, 0.5, 1, 1.7, 2, 3)
ROOTS = (1, 2, 3, 4, 8)
CONDITIONS = {"float32": ("1", "1e3", "1e6"), "float64": ("1", "1e3", "1e6", "1e9", "1e12")}
SMALL = 4  # rows and columns: mpmath is slow


def _powers(function: str, name: str, exponents: tuple[float, ...]) -> list[Case]:
    cases = []
    for dtype, known in CONDITIONS.items():
        spectra = [f"condition {kappa}" for kappa in known]
        if function == "powm, value" or function.startswith("inv_root"):
            spectra = spectra[1:]
        elif function == "powm, diagonal":
            spectra += [f"ties, condition {kappa}" for kappa in known[1:]]
            spectra += [f"singular, floor, condition {kappa}" for kappa in known[1:]]
        else:
            spectra += [f"{what}, condition {known[1]}" for what in ("ties", "singular, floor")]
        for exponent, kind in itertools.product(exponents, spectra):
            numbers = (exponent, float(kind.split()[-1]))
            cases.append(
                Case(
                    "gradients",
                    SMALL,
                    1,
                    function=function,
                    dtype=dtype,
                    kind=f"{name} = {exponent:g}, {kind}",
                    numbers=numbers,
                )
            )
    return cases


SHAPES = {"square": (4, 4), "tall": (5, 3), "wide": (3, 5)}
DTYPES = ("float32", "float64")
ALIGNED = (
    *(f"s_min/s_max {ratio}" for ratio in ("1", "1e-1", "1e-2", "1e-3", "1e-4")),
    "tie",
    "tie, diagonal",
    "gap 1e-3",
    "gap 1e-6",
)
VECTORS = ("separated", "gap 1e-3", "gap 1e-3, span", "gap 1e-6", "gap 1e-6, span", "tie", "tie, diagonal", "graded 1e-4")
VALUES = ("separated", "gap 1e-6", "tie", "tie, diagonal", "graded 1e-4")


def _svd() -> list[Case]:
    kinds = {"U V^H": ALIGNED, "U": VECTORS, "V": VECTORS, "S": VALUES}
    return [
        Case("gradients", min(shape), 1, shape=shape, function=f"svd, {what}", dtype=dtype, kind=f"{kind}, {name}")
        for what, dtype in itertools.product(kinds, DTYPES)
        for kind, (name, shape) in itertools.product(kinds[what], SHAPES.items())
    ]


MAPS = ("tanh", "x^3", "x/(1+x^2)")
MAPPED = ("separated", "gap 1e-6", "tie", "tie, diagonal", "graded 1e-4", "rank-deficient")
REGULAR = MAPPED[:-1]
NORMS = {"nuclear_norm": 1.0, "schatten_norm, p = 1.5": 1.5, "schatten_norm, p = 3": 3.0}


def _maps() -> list[Case]:
    kinds = {f"singular_map, {name}": MAPPED for name in MAPS} | {"pinv": REGULAR} | dict.fromkeys(NORMS, REGULAR)
    numbers = {name: (p,) for name, p in NORMS.items()}
    found = [
        Case(
            "gradients",
            min(shape),
            1,
            shape=shape,
            function=function,
            dtype=dtype,
            kind=f"{kind}, {name}",
            numbers=numbers.get(function, ()),
        )
        for function, dtype in itertools.product(kinds, DTYPES)
        for kind, (name, shape) in itertools.product(kinds[function], SHAPES.items())
    ]
    logdet = [
        Case("gradients", SMALL, 1, function="logdet", dtype=dtype, kind=kind)
        for dtype, kind in itertools.product(DTYPES, ("separated", "gap 1e-6", "tie", "graded 1e-4"))
    ]
    return found + logdet


PENCILS = {
    "w": ("separated", "gap 1e-6", "tie", "graded 1e-4"),
    "V": ("separated", "gap 1e-3", "gap 1e-3, span", "gap 1e-6", "gap 1e-6, span", "tie"),
    "value": ("separated", "gap 1e-3, span", "tie"),
}


def _pencils() -> list[Case]:
    return [
        Case(
            "gradients",
            SMALL,
            1,
            function=f"generalized_eigh, {what}",
            dtype=dtype,
            kind=f"{kind}, condition of B {kappa}",
            numbers=(float(kappa),),
        )
        for what, dtype in itertools.product(PENCILS, DTYPES)
        for kind, kappa in itertools.product(PENCILS[what], ("1e1", "1e3"))
    ]


SECOND = ("sqrtm", "inv_sqrtm", "powm 1.7", "powm -1", "logm", "expm", "spectral_map tanh", "eigh, spans")
SECOND_SINGULAR = ("polar", "singular_map tanh", "svd U", "svd V", "svd U V^H")
TIES = {
    "float32": ("separated", "gap 1e-3", "gap 1e-6", "tie", "tie, diagonal", "s_min/s_max 1"),
    "float64": ("separated", "gap 1e-3", "gap 1e-6", "gap 1e-12", "tie", "tie, diagonal", "s_min/s_max 1"),
}


def _second() -> list[Case]:
    def case(name: str, dtype: str, kind: str, shape: tuple[int, ...]) -> Case:
        return Case("gradients", min(shape), 1, shape=shape, function=f"second derivative, {name}", dtype=dtype, kind=kind)

    symmetric = [
        case(name, dtype, kind, (SMALL, SMALL))
        for name, dtype in itertools.product(SECOND, DTYPES)
        for kind in TIES[dtype]
        if not (name == "eigh, spans" and kind.startswith("s_min"))  # the spans of pairs, where all is one tie
    ]
    singular = [
        case(name, dtype, f"{kind}, {word}", SHAPES[word])
        for name, dtype in itertools.product(SECOND_SINGULAR, DTYPES)
        for word in ("square", "wide" if name == "svd V" else "tall")
        for kind in TIES[dtype]
        if not (name in ("svd U", "svd V") and kind.startswith("s_min"))
    ]
    return symmetric + singular


QUICK = 17  # with --quick one case in so many, a number that meets every function, dtype and shape


def cases(quick: bool = False) -> list[Case]:
    """All of them, in order.

    >>> len({case.function for case in cases(quick=True)}) > 20
    True
    """
    found = [
        *(case for what in ("diagonal", "rotated", "value") for case in _powers(f"powm, {what}", "alpha", ALPHAS)),
        *(case for what in ("diagonal", "rotated", "value") for case in _powers(f"inv_root, {what}", "p", ROOTS)),
        *_svd(),
        *_maps(),
        *_pencils(),
        *_second(),
    ]
    return found[::QUICK] if quick else found

"""Every public function, once: how it is called, of what, and what is known of it. A new one is tested by being listed.

Each theme (tests/every) takes the cases that it has something to say about. `FUNCTIONS` in `tests/fuzz` is apart: what a
GPU machine runs with torch alone, lines of code that can be pasted, and bounds of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases

Map = Callable[[Tensor], Tensor]
# What an input is: Hermitian matrices with spectra that ..., any (m, n), samples, clouds of points, feature maps.
Domain = Literal["hermitian", "semidefinite", "definite", "matrices", "samples", "clouds", "maps"]
SQUARE = ("hermitian", "semidefinite", "definite")


# Inputs (*batch, ...), the same for the same seed.


def definite(*batch: int, n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Positive definite matrices (*batch, n, n) whose eigenvalues lie apart."""
    shift = torch.diag(torch.arange(1.0, n + 1, dtype=torch.float64))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return (cases.random_covariance(n, *batch, dtype=wide, seed=seed) + 0.3 * shift).to(dtype)


def tall(*batch: int, n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return definite(*batch, n=n, dtype=dtype, seed=seed)[..., :-1]


def wide(*batch: int, n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return tall(*batch, n=n, dtype=dtype, seed=seed).mT


def several(*batch: int, n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Three positive definite matrices (*batch, 3, n, n)."""
    return definite(*batch, 3, n=n, dtype=dtype, seed=seed)


def clouds(*batch: int, n: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Points or samples in rows (*batch, 9, n)."""
    return cases.random(*batch, 9, n, dtype=dtype, seed=seed)


def unsymmetric(*batch: int, n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return cases.random(*batch, n, n, dtype=dtype, seed=seed)


def images(*batch: int, n: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return cases.random(*batch, 2, n, 5, 5, dtype=dtype, seed=seed).sigmoid()


def maps(*batch: int, n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return cases.random(*batch, 8, n, 3, 3, dtype=dtype, seed=seed)


def _none(x: Tensor) -> tuple[Tensor, ...]:
    return ()


def turned(M: Tensor) -> Tensor:
    """P M P^T, a second matrix of the same scale."""
    return M.roll((1, 1), (-2, -1))


def _turned(M: Tensor) -> tuple[Tensor, ...]:
    return (turned(M),)


# What of a result does not depend on signs and phases, as one tensor.


def compose(w: Tensor, V: Tensor, Uh: Tensor | None = None) -> Tensor:
    """V sin(w) V^H; by sums, which autocast leaves alone."""
    Uh = V.mH if Uh is None else Uh
    return ((V * w.sin().unsqueeze(-2)).unsqueeze(-1) * Uh.unsqueeze(-3)).sum(-2)


def _of_pairs(found: Any) -> Tensor:
    return compose(*found)


def _of_triplets(found: Any) -> Tensor:
    U, S, Vh = found
    return compose(S, U[..., : S.shape[-1]], Vh[..., : S.shape[-1], :])


def _vectors(found: Any) -> Tensor:
    """|V| alone, which does not change with the scale. A sum of cut derivatives would overflow, so no product follows."""
    return found[1].abs()


def _both_vectors(found: Any) -> Tensor:
    U, S, Vh = found
    return torch.cat([U[..., : S.shape[-1]].abs(), Vh[..., : S.shape[-1], :].abs()], -2)


def _itself(found: Any) -> Tensor:
    return found


def _column(found: Tensor) -> Tensor:
    return found.unsqueeze(-1)


def _entry(found: Tensor) -> Tensor:
    return found[..., None, None]


def _motion(found: Any) -> Tensor:
    """R, t and the scale beside each other."""
    R, t, *s = found
    return torch.cat([R, *(z.reshape(*t.shape[:-1], -1, 1).expand_as(t.unsqueeze(-1)) for z in (t, *s))], -1)


def _covariance(found: Any) -> Tensor:
    return found.covariance()


# The same by torch.linalg: a reference at scale 1 in float64.


def spectral(f: Map) -> Map:
    def mapped(M: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(M)
        return (V * f(w).unsqueeze(-2)) @ V.mH

    return mapped


def singular(f: Map) -> Map:
    def mapped(A: Tensor) -> Tensor:
        U, S, Vh = torch.linalg.svd(A, full_matrices=False)
        return (U * f(S).unsqueeze(-2)) @ Vh

    return mapped


def _projector(M: Tensor, kept: slice = slice(-2, None)) -> Tensor:
    V = torch.linalg.eigh(M)[1][..., kept]
    return V @ V.mH


def _pencil(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    L = torch.linalg.cholesky(B)
    half = torch.linalg.solve_triangular(L, A, upper=False)
    w, Q = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.mH, upper=False))
    return w, torch.linalg.solve_triangular(L.mH, Q, upper=True)


def _rotation(A: Tensor) -> Tensor:
    U, _, Vh = torch.linalg.svd(A)
    d = torch.linalg.det(U @ Vh)
    return torch.cat([U[..., :-1], U[..., -1:] * d[..., None, None]], -1) @ Vh


def _least_squares(A: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.lstsq(A, b).solution


def _null_projector(A: Tensor) -> Tensor:
    return torch.eye(A.shape[-1], dtype=A.dtype) - torch.linalg.pinv(A) @ A


def _norm(p: float) -> Map:
    return lambda A: torch.linalg.vector_norm(torch.linalg.svdvals(A), p, -1)


def _logdet(M: Tensor) -> Tensor:
    return torch.linalg.slogdet(M).logabsdet


def _covariance_of(X: Tensor) -> Tensor:
    centred = X - X.mean(-1, keepdim=True)
    return centred @ centred.mH / X.shape[-1]


# The catalogue.


@dataclass(frozen=True)
class Case:
    """A public function with its options.

    Args:
        name: the public name, and in brackets what is asked of it.
        call: of the input, the ``others`` and options.
        input: (*batch, n=, dtype=, seed=) -> that tensor.
        others: the input -> the other tensors that ``call`` takes, so that one tensor has all derivatives.
        domain: what inputs the function takes.
        of: its result -> one tensor that does not depend on signs and phases.
        degree: p where f(c x) = c^p f(x) for c > 0.
        scaled: what of the result that is said of; `of` by default.
        offset: f(c x) = f(x) + offset log(c) I instead, for 3 x 3 matrices.
        reference: the same result by other means, at scale 1 in float64.
        tags: "eigen", "triplets": takes gradient= and solver=, for eigenpairs or singular triplets. "products": by matrix
            products. "hermitian": so is the result, to the last bit. "torch": the reference is torch's own function, whose
            strides ours has too. "real": of real numbers alone. "whole": no batch dimensions. "approximate": its gradient
            is no derivative. "once": no second derivative by torch.func. "of scale": a further option, for tests of values
            and scales. "finite only": promised are finite derivatives at the ends of the range. "modulus": `scaled` is |.|,
            whose own derivatives overflow where those of the result are cut. "traced", "compiled": so by `make test`, the
            others by `make test-all`.
    """

    name: str
    call: Callable[..., Any]
    input: Callable[..., Tensor] = definite
    others: Callable[[Tensor], tuple[Tensor, ...]] = _none
    domain: Domain = "definite"
    of: Callable[[Any], Tensor] = _itself
    degree: float | None = None
    scaled: Callable[[Any], Tensor] | None = None
    offset: float = 0
    reference: Callable[..., Any] | None = None
    tags: frozenset[str] = frozenset()

    @property
    def function(self) -> str:
        return self.name.split("(")[0]

    def __call__(self, x: Tensor) -> Tensor:
        return self.of(self.call(x, *self.others(x)))

    def expected(self, x: Tensor) -> Tensor:
        assert self.reference is not None
        return self.of(self.reference(x, *self.others(x)))

    def tangent(self, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 3) -> Tensor:
        """A direction in which the input may move."""
        shape = self.input(*batch, dtype=dtype).shape
        E = cases.random(*shape, dtype=dtype, seed=seed)
        return (E + E.mH) / 2 if self.domain in SQUARE else E


def _case(name: str, call: Callable[..., Any], tags: str = "", **more: Any) -> Case:
    return Case(name, call, tags=frozenset(tags.split(", ") if tags else ()), **more)


_NEWTON = sg.NewtonSchulz()
_STEPS = sg.NewtonSchulz(steps=5)
_PAIRS: dict[str, Any] = {
    "of": _of_pairs,
    "domain": "hermitian",
    "degree": 0,
    "scaled": _vectors,
    "reference": torch.linalg.eigh,
}
_TRIPLETS: dict[str, Any] = {
    "of": _of_triplets,
    "input": tall,
    "domain": "matrices",
    "degree": 0,
    "scaled": _both_vectors,
    "reference": partial(torch.linalg.svd, full_matrices=False),
}
_TALL: dict[str, Any] = {"input": tall, "domain": "matrices"}
_POLAR: dict[str, Any] = {"domain": "matrices", "degree": 0, "reference": singular(torch.ones_like)}
_CLOUDS: dict[str, Any] = {"input": clouds, "domain": "clouds"}
_MAPS: dict[str, Any] = {"input": maps, "domain": "maps"}
_CUT: dict[str, Any] = {"domain": "hermitian", "degree": 0}


def _root(name: str, call: Callable[..., Any], alpha: float, tags: str, **more: Any) -> Case:
    domain = "definite" if alpha < 0 else "semidefinite"
    return _case(name, call, tags, domain=domain, degree=alpha, reference=spectral(lambda w: w**alpha), **more)


def _power(alpha: float, tags: str = "eigen, hermitian") -> Case:
    return _root(f"powm({alpha})", partial(sg.powm, alpha=alpha), alpha, tags)


def _sine(x: Tensor) -> Tensor:
    return torch.sin(1.3 * x) + x.log()


def _odd(x: Tensor) -> Tensor:
    return torch.sin(1.3 * x) + x**3


METRICS = ("affine", "logeuclid", "bures")


def _of_spd(name: str, call: Callable[..., Any], degrees: tuple[float | None, ...], tags: str, **more: Any) -> list[Case]:
    """A function in each metric. It has a second argument or several: sums of their slopes may overflow."""
    return [
        _case(
            f"spd.{name}({metric})",
            partial(call, metric=metric),
            ", ".join(
                filter(None, (tags, "finite only", "traced, compiled" if (name, metric) == ("mean", "affine") else ""))
            ),
            degree=degree,
            **more,
        )
        for metric, degree in zip(METRICS, degrees, strict=False)
    ]


def _transport(A: Tensor, B: Tensor, metric: Any) -> Tensor:
    return sg.spd.transport(A, A, B, metric)


def _towards(A: Tensor) -> tuple[Tensor, ...]:
    return (turned(A) - A,)


CASES: list[Case] = [
    _case("eigh", sg.eigh, "eigen, torch, modulus, traced, compiled", **_PAIRS),
    _case("eigh(UPLO)", partial(sg.eigh, UPLO="U"), **_PAIRS),
    _case("eigh(Exact)", partial(sg.eigh, gradient=sg.Exact()), "modulus, of scale", **_PAIRS),
    _case("eigh(Jacobi)", partial(sg.eigh, solver=sg.Jacobi()), "modulus", **_PAIRS),
    _case("eigh(SVD)", partial(sg.eigh, solver=sg.SVD()), "modulus", **_PAIRS),
    _case("eigvalsh", sg.eigvalsh, "torch", domain="hermitian", of=_column, degree=1, reference=torch.linalg.eigvalsh),
    _case("svd", sg.svd, "triplets, torch, modulus, traced, compiled", **_TRIPLETS),
    _case("svd(wide)", sg.svd, "torch", **{**_TRIPLETS, "input": wide, "degree": None}),
    _case("svd(Clip)", partial(sg.svd, gradient=sg.Clip(100.0)), "modulus, of scale", **_TRIPLETS),
    _case("svd(full_matrices)", partial(sg.svd, full_matrices=True), **{**_TRIPLETS, "degree": None}),
    _case("svdvals", sg.svdvals, "torch", **_TALL, of=_column, degree=1, reference=torch.linalg.svdvals),
    _case(
        "generalized_eigh",
        sg.generalized_eigh,
        "modulus, traced, compiled",
        others=_turned,
        of=_of_pairs,
        degree=-0.5,
        scaled=_vectors,
        reference=_pencil,
    ),
    _root("sqrtm", sg.sqrtm, 0.5, "eigen, hermitian"),
    _root("sqrtm(NewtonSchulz)", partial(sg.sqrtm, solver=_NEWTON), 0.5, "products, hermitian, finite only, traced"),
    _case("sqrtm(steps)", partial(sg.sqrtm, solver=_STEPS), "products, hermitian", domain="semidefinite"),
    _case("sqrtm(floor)", partial(sg.sqrtm, floor=1.4142), "hermitian", domain="hermitian"),
    *(
        _case(f"sqrtm({type(rule).__name__})", partial(sg.sqrtm, gradient=rule), tags, domain="semidefinite")
        for rules, tags in (
            ([sg.Exact(), sg.Lorentzian(), sg.Clip(100.0), sg.Analytic()], "hermitian"),
            ([sg.Taylor(9), sg.PowerIteration(3)], "hermitian, approximate"),
        )
        for rule in rules
    ),
    _root("inv_sqrtm", sg.inv_sqrtm, -0.5, "eigen, hermitian, traced, compiled"),
    _root("inv_sqrtm(NewtonSchulz)", partial(sg.inv_sqrtm, solver=_NEWTON), -0.5, "products, hermitian, finite only"),
    _case("inv_sqrtm(floor)", partial(sg.inv_sqrtm, floor=1.4142), "hermitian", domain="hermitian"),
    *map(_power, (0.3, -1.7, 2.2)),
    *(
        _root(
            f"powm(tensor {alpha})",
            lambda M, alpha=alpha: sg.powm(M, torch.tensor(alpha, dtype=torch.float64)),
            alpha,
            "hermitian, finite only, of scale",
        )
        for alpha in (0.3, -1.7)
    ),
    *(_power(alpha, "hermitian, of scale") for alpha in (-2, -1, 2, 3)),
    _root("inv_root(3)", partial(sg.inv_root, p=3), -1 / 3, "eigen, hermitian"),
    _root("inv_root(4)", partial(sg.inv_root, p=4), -1 / 4, "eigen, hermitian"),
    _root(
        "inv_root(4, NewtonSchulz)", partial(sg.inv_root, p=4, solver=_NEWTON), -1 / 4, "products, hermitian, finite only"
    ),
    _case("logm", sg.logm, "eigen, hermitian", degree=0, offset=1, reference=spectral(torch.log)),
    _case("expm", sg.expm, "eigen, hermitian", domain="hermitian", reference=spectral(torch.exp)),
    _case("spectral_map", partial(sg.spectral_map, f=_sine), "eigen, hermitian, traced", reference=spectral(_sine)),
    *(
        _root(f"spectral_map({name})", partial(sg.spectral_map, f=f), alpha, "hermitian, finite only, of scale")
        for name, f, alpha in (("sqrt", torch.sqrt, 0.5), ("1/x", torch.reciprocal, -1.0))
    ),
    _case("projector(rank)", partial(sg.projector, rank=2), "eigen, hermitian", **_CUT, reference=_projector),
    _case(
        "projector(smallest)",
        partial(sg.projector, rank=2, smallest=True),
        "eigen, hermitian",
        **_CUT,
        reference=partial(_projector, kept=slice(2)),
    ),
    _case("projector(energy)", partial(sg.projector, energy=0.8), "eigen, hermitian", domain="semidefinite"),
    _case("polar", sg.polar, "triplets, torch", **_POLAR),
    _case("polar(tall)", sg.polar, "of scale", **_POLAR, input=tall),
    _case("polar(wide)", sg.polar, "torch, compiled", **_POLAR, input=wide),
    _case("polar(NewtonSchulz)", partial(sg.polar, solver=_NEWTON), "products, finite only", **_POLAR),
    _case("polar(steps)", partial(sg.polar, solver=_STEPS), "products", domain="matrices"),
    _case("singular_map", partial(sg.singular_map, f=_odd), domain="matrices", reference=singular(_odd)),
    _case("singular_map(tall)", partial(sg.singular_map, f=torch.atan), **_TALL, reference=singular(torch.atan)),
    _case(
        "singular_map(wide)",
        partial(sg.singular_map, f=torch.atan),
        domain="matrices",
        input=wide,
        reference=singular(torch.atan),
    ),
    _case(
        "singular_map(cube)",
        partial(sg.singular_map, f=lambda x: x**3),
        "of scale, finite only",
        **_TALL,
        degree=3,
        reference=singular(lambda s: s**3),
    ),
    _case("pinv", sg.pinv, "torch", domain="matrices", reference=torch.linalg.pinv),
    _case(
        "pinv(atol)",
        partial(sg.pinv, atol=1e-3),
        domain="matrices",
        input=unsymmetric,
        reference=partial(torch.linalg.pinv, atol=1e-3),
    ),
    _case("pinv(hermitian)", partial(sg.pinv, hermitian=True), "hermitian", degree=-1, reference=torch.linalg.pinv),
    _case("pinv(tall)", sg.pinv, "torch, compiled", **_TALL, degree=-1, reference=torch.linalg.pinv),
    _case("pinv(wide)", sg.pinv, "torch, of scale", domain="matrices", input=wide, reference=torch.linalg.pinv),
    _case(
        "lstsq",
        sg.lstsq,
        "finite only",
        others=lambda A: (A.roll(1, -2),),
        **_TALL,
        degree=0,
        reference=_least_squares,
    ),
    _case("lstsq(wide)", sg.lstsq, others=lambda A: (A.roll(1, -2),), domain="matrices", input=wide),
    _case("nullspace", sg.nullspace, "hermitian", domain="matrices", input=wide, reference=_null_projector),
    _case("nullspace(rank)", partial(sg.nullspace, rank=2), "hermitian", **_TALL),
    _case(
        "nuclear_norm",
        sg.nuclear_norm,
        "torch",
        **_TALL,
        of=_entry,
        degree=1,
        reference=partial(torch.linalg.matrix_norm, ord="nuc"),
    ),
    _case("schatten_norm", partial(sg.schatten_norm, p=3), **_TALL, of=_entry, degree=1, reference=_norm(3)),
    _case("logdet", sg.logdet, of=_entry, degree=0, offset=3, reference=_logdet),
    _case("covariance", sg.covariance, "real, hermitian", domain="samples", reference=_covariance_of),
    _case(
        "moments",
        lambda X: sg.merge_moments([sg.moments(X), sg.moments(X[..., :-1])]),
        "real, traced",
        domain="samples",
        of=_covariance,
    ),
    _case("procrustes", sg.procrustes, "torch, of scale", **_POLAR),
    _case(
        "procrustes(special)",
        partial(sg.procrustes, special=True),
        "real",
        domain="matrices",
        input=unsymmetric,
        degree=0,
        reference=_rotation,
    ),
    _case("kabsch", sg.kabsch, "real, traced", others=lambda x: (x.roll(1, -1).sin(),), **_CLOUDS, of=_motion),
    _case(
        "kabsch(weights)", sg.kabsch, "real", others=lambda x: (x.roll(1, -1).sin(), x[..., 0].abs()), **_CLOUDS, of=_motion
    ),
    _case("umeyama", sg.umeyama, "real", others=lambda x: (x.roll(1, -1).sin(),), **_CLOUDS, of=_motion),
    _case(
        "frechet_distance",
        lambda A, B: sg.frechet_distance(A[..., 0], A, B[..., 1], B),
        "traced, compiled",
        others=_turned,
        domain="semidefinite",
    ),
    _case("frechet_distance_of", sg.frechet_distance_of, others=lambda x: (x[..., 4:, :].sin(),), **_CLOUDS),
    _case("cca_loss", sg.cca_loss, others=lambda x: (x[..., 1:].sin(),), **_CLOUDS),
    _case("cca_loss(k)", partial(sg.cca_loss, k=1), others=lambda x: (x[..., 1:].sin(),), **_CLOUDS),
    *_of_spd("distance", sg.spd.distance, (0, None, 0.5), "", others=_turned, of=_entry),
    *_of_spd("geodesic", partial(sg.spd.geodesic, t=0.3), (1, 1, 1), "hermitian", others=_turned),
    *_of_spd("mean", sg.spd.mean, (1, 1, 1), "hermitian", input=several),
    *_of_spd("log_map", sg.spd.log_map, (1,), "hermitian", others=_turned),
    *_of_spd("exp_map", sg.spd.exp_map, (1,), "hermitian", others=_towards),
    *(
        _case(f"spd.{name}(logeuclid)", partial(call, metric="logeuclid"), "hermitian, finite only, once", degree=1, **more)
        for name, call, more in (
            ("log_map", sg.spd.log_map, {"others": _turned}),
            ("exp_map", sg.spd.exp_map, {"others": _towards}),
        )
    ),
    *_of_spd("transport", _transport, (1,), "hermitian", others=_turned),
    _case(
        "spd.transport(logeuclid)",
        partial(_transport, metric="logeuclid"),
        "hermitian, finite only, once",
        others=_turned,
        degree=1,
    ),
    _case("nn.functional.whiten", partial(sg.nn.functional.whiten, group_size=2), "real, whole, traced", **_MAPS),
    _case(
        "nn.functional.whiten_color",
        sg.nn.functional.whiten_color,
        "real, whole",
        others=lambda x: (x.flip(-4).sin(),),
        **_MAPS,
    ),
    _case(
        "nn.functional.color_transfer",
        sg.nn.functional.color_transfer,
        "real, whole",
        others=lambda x: (x.roll(1, -3) ** 2,),
        input=images,
        domain="maps",
    ),
    _case("nn.functional.covariance_pool", sg.nn.functional.covariance_pool, "real", **_MAPS),
    _case("orthogonal.orthogonal_loss", lambda M: sg.orthogonal.orthogonal_loss([M]), "real, whole", domain="matrices"),
]
BY_NAME = {case.name: case for case in CASES}
assert len(BY_NAME) == len(CASES)
# What is called by users but is no function of a tensor with derivatives; tested by name.
NO_MAPS = {
    *("checks", "counts", "reset_counts", "merge_moments", "nn.convert_batchnorm", "nn.fuse"),
    *("orthogonal.orthogonal_weight", "orthogonal.spectral_norm"),
    *("eigsh", "svds"),  # of large matrices: tests/linalg/topk
}


def having(*tags: str, but: tuple[str, ...] = ()) -> dict[str, Case]:
    """The cases with all of ``tags`` and none of ``but``."""
    return {name: case for name, case in BY_NAME.items() if case.tags.issuperset(tags) and case.tags.isdisjoint(but)}


def each(found: dict[str, Case], reasons: dict[str, str] | None = None) -> pytest.MarkDecorator:
    """A test for each case; those with a reason are known to fail it, and the mend of one takes its line away."""
    reasons = reasons or {}
    assert reasons.keys() <= found.keys()
    marks = {name: pytest.mark.xfail(strict=True, reason=reason) for name, reason in reasons.items()}
    values = [pytest.param(case, id=name, marks=marks.get(name, ())) for name, case in found.items()]
    return pytest.mark.parametrize("case", values)


def each_quick(tag: str, found: dict[str, Case]) -> pytest.MarkDecorator:
    """A test for each case, slow but for those with the tag."""
    slow = {name: () if tag in case.tags else pytest.mark.slow for name, case in found.items()}
    return pytest.mark.parametrize("case", [pytest.param(case, id=name, marks=slow[name]) for name, case in found.items()])

"""Bad input gets one clear error and changes nothing; good input of any batch shape, size, layout and dtype works."""

import math
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import (
    DefinitenessError,
    DeviceError,
    DtypeError,
    NonFiniteError,
    OptionError,
    ShapeError,
    SymmetryError,
)
from support import cases
from support.catalogue import BY_NAME, Case, having
from support.catalogue import SQUARE as SQUARES

Call = Callable[..., Any]
EIGEN = {name: case.call for name, case in having("eigen").items()}
EIGEN |= {f"projector({kind})": partial(sg.projector, rank=1, smallest=kind == "smallest") for kind in ("rank", "smallest")}
SINGULAR_VALUES = {name: case.call for name, case in having("triplets").items()}
OF_SINGULAR_VALUES = {name: BY_NAME[name].call for name in ("singular_map", "pinv", "nuclear_norm", "schatten_norm")}
BY_PRODUCTS = having("products")
ROOTS = {name: case.call for name, case in BY_PRODUCTS.items() if case.domain in SQUARES}
POLARS = {name: case.call for name, case in BY_PRODUCTS.items() if name not in ROOTS}
SAMPLES: dict[str, Call] = {"moments": sg.moments, "covariance": sg.covariance}
FLOORED = {"sqrtm": "sqrtm", "inv_sqrtm": "inv_sqrtm", "powm": "powm(0.3)", "inv_root": "inv_root(3)", "logm": "logm"}
FLOORED_ANYWHERE = {"expm": "expm", "spectral_map": "spectral_map"}
NUMBERS = ("nuclear_norm", "schatten_norm", "logdet")  # one for each matrix

SQUARE = EIGEN | ROOTS | {"logdet": sg.logdet}
DECOMPOSED = SQUARE | SINGULAR_VALUES | OF_SINGULAR_VALUES | POLARS
ALL = DECOMPOSED | SAMPLES
NAN, INF = math.nan, math.inf


def each(functions: dict[str, Call]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "function"), functions.items(), ids=functions)


def positive(*batch: int, n: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return cases.with_spectrum(cases.separated(n), *batch, dtype=dtype)


def refuses(error: type[Exception], name: str, function: Call, *args: Any, **options: Any) -> str:
    """The message of the error, after making sure that it names the function and that the attempt left no trace."""
    given = [x for x in args if isinstance(x, Tensor)]
    copies, rng, counts = [x.clone() for x in given], torch.get_rng_state(), sg.counts()
    with pytest.raises(error) as caught:
        function(*args, **options)
    assert isinstance(caught.value, sg.errors.SpectralError)
    assert str(caught.value).startswith(f"`{name.split('(')[0]}")
    for x, copy in zip(given, copies, strict=True):
        torch.testing.assert_close(x, copy, rtol=0, atol=0, equal_nan=True)
        assert x.grad is None
    assert torch.equal(torch.get_rng_state(), rng)
    assert sg.counts() == counts
    return str(caught.value)


# What a matrix must be


@each(ALL)
def test_not_a_matrix(name: str, function: Call) -> None:
    M = positive()
    for bad, kind in ((M.tolist(), "list"), (M.numpy(), "ndarray"), (None, "NoneType"), (2.0, "float")):
        message = refuses(DtypeError, name, function, bad)
        assert f"must be a torch.Tensor, got {kind}. Convert it with torch.as_tensor" in message
    for bad in (torch.ones(3), torch.tensor(1.0)):
        message = refuses(ShapeError, name, function, bad)
        assert f"at least two dimensions, (*batch, {'n, n' if name in SQUARE else 'm, n'}), got shape" in message
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        message = refuses(DtypeError, name, function, torch.ones(2, 2).to(dtype))
        assert f"must be floating point or complex, got {dtype}" in message


def test_advice_that_can_be_followed() -> None:
    """Neither ndarray.float() nor a vector.reshape(1, 1) exists, and complex.float() drops a half."""
    assert message_of(DtypeError, sg.nn.functional.whiten, torch.ones(4, 2).numpy()).endswith("with torch.as_tensor.")
    assert message_of(DtypeError, sg.nn.functional.whiten, torch.ones(4, 2).long()).endswith("with .float().")
    assert message_of(DtypeError, sg.nn.functional.whiten, torch.ones(4, 2) + 0j).endswith("torch.view_as_real.")
    assert message_of(ShapeError, sg.covariance, torch.ones(5)).endswith("One row is X.unsqueeze(0).")
    assert message_of(ShapeError, sg.covariance, torch.tensor(5.0)).endswith("use X.reshape(1, 1).")


def message_of(error: type[Exception], function: Call, x: Any) -> str:
    with pytest.raises(error) as caught:
        function(x)
    return str(caught.value)


@each(SQUARE)
def test_not_square(name: str, function: Call) -> None:
    for shape in ((4, 3), (3, 4), (2, 3, 1)):
        message = refuses(ShapeError, name, function, torch.ones(shape))
        assert f"must be square in its last two dimensions, got {shape}" in message
        assert "use `svd` or `polar`" in message


@each(DECOMPOSED)
def test_not_finite(name: str, function: Call) -> None:
    M = positive(2)
    M[1, 0, 1] = M[1, 1, 0] = NAN
    M[1, 2, 2] = -INF
    message = refuses(NonFiniteError, name, function, M)
    assert "2 NaN and 1 Inf among 18 entries, the first at index (1, 0, 1)" in message
    message = refuses(NonFiniteError, name, function, torch.full((3, 3), INF))
    assert "0 NaN and 9 Inf among 9 entries, the first at index (0, 0)" in message
    refuses(NonFiniteError, name, function, torch.full((1, 1), NAN, dtype=torch.float16))
    refuses(NonFiniteError, name, function, torch.full((1, 1), complex(1, NAN)))


@each(SINGULAR_VALUES | OF_SINGULAR_VALUES | POLARS | {"procrustes": sg.procrustes})
def test_where_a_wide_matrix_is_not_finite(name: str, function: Call) -> None:
    A = torch.rand(2, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    A[1, 0, 2] = NAN
    assert "among 12 entries, the first at index (1, 0, 2)" in refuses(NonFiniteError, name, function, A)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=cases.ident)
@each(SQUARE)
def test_not_symmetric(name: str, function: Call, dtype: torch.dtype) -> None:
    tolerance = cases.eps(dtype) ** 0.5
    for scale in (1.0, 1e-6):
        if name == "expm" and scale != 1:  # there 64 eps of 1 are rounding: `errors.SymmetryError`
            continue
        M = scale * torch.eye(3, dtype=dtype).repeat(2, 1, 1)
        M[1, 0, 1] = scale * tolerance  # half of it is the distance from the symmetric part
        function(M)
        M[1, 0, 1] = scale * 4 * tolerance * (1j if dtype.is_complex else 1)
        message = refuses(SymmetryError, name, function, M)
        assert "must be symmetric (Hermitian)" in message
        assert float(re.findall(r"by (\S+)\. ", message)[0]) == pytest.approx(2 * tolerance, rel=0.1)  # the worst, relative
        assert "pass (M + M.mH) / 2" in message
        function((M + M.mH) / 2)
    if dtype.is_complex:
        refuses(SymmetryError, name, function, torch.eye(2) * (1 + 0.1j))


NEGATIVE = torch.diag(torch.tensor([1.0, 2.0, -0.5]))
SINGULAR = torch.diag(torch.tensor([1.0, 2.0, 0.0]))
DOMAINS: dict[str, Call] = {  # name -> function of a positive (semi-)definite matrix
    "sqrtm": sg.sqrtm,
    "powm(0.3)": lambda M, **options: sg.powm(M, 0.3, **options),
    "inv_sqrtm": sg.inv_sqrtm,
    "powm(-1)": lambda M, **options: sg.powm(M, -1, **options),
    "inv_root(4)": lambda M, **options: sg.inv_root(M, 4, **options),
    "logm": sg.logm,
}


def test_logdet_outside_the_domain() -> None:
    assert "1 of 2 matrices" in refuses(DefinitenessError, "logdet", sg.logdet, torch.stack([torch.eye(3), NEGATIVE]))
    assert "pass floor=" in refuses(DefinitenessError, "logdet", sg.logdet, SINGULAR)
    assert sg.logdet(SINGULAR, floor=1e-3).isfinite()


@each(DOMAINS | {"logdet": sg.logdet})
def test_derivatives_under_vmap_outside_the_domain(name: str, function: Call) -> None:
    """A singular matrix is clamped there, wherever the derivative is taken, and leaves the others as they are."""
    M, T = torch.stack([positive().float(), SINGULAR, torch.zeros(3, 3)]), torch.ones(3, 3)

    def weighed(M: Tensor) -> Tensor:
        return function(M).sum()

    def tangent(M: Tensor) -> Tensor:
        return torch.func.jvp(weighed, (M,), (T,))[1]

    within, forward = torch.vmap(torch.func.grad(weighed))(M), torch.vmap(tangent)(M)
    around = torch.func.grad(lambda M: torch.vmap(weighed)(M).sum())(M)
    for found, alone in ((within, torch.func.grad(weighed)), (around, torch.func.grad(weighed)), (forward, tangent)):
        assert found.isfinite().all()
        torch.testing.assert_close(found[0], alone(M[0]))
    assert torch.vmap(torch.func.hessian(weighed))(M).isfinite().all()
    with sg.checks(True), pytest.raises(DefinitenessError):
        torch.vmap(torch.func.grad(weighed))(torch.stack([M[0], NEGATIVE]))


@pytest.mark.parametrize("gradient", [None, sg.Lorentzian(), sg.PowerIteration(5)], ids=["exact", "lorentzian", "power"])
@each(DOMAINS)
def test_outside_the_domain(name: str, function: Call, gradient: Any) -> None:
    function = partial(function, gradient=gradient)
    message = refuses(DefinitenessError, name, function, torch.stack([torch.eye(3), NEGATIVE]))
    assert "1 of 2 matrices" in message
    assert "-5.000e-01" in message
    if name in ("sqrtm", "powm(0.3)"):
        assert function(SINGULAR).isfinite().all()
    else:
        message = refuses(DefinitenessError, name, function, SINGULAR)
        assert "must be positive definite" in message
        assert "pass floor=" in message
    assert function(SINGULAR, floor=1e-3).isfinite().all()


def test_newton_outside_the_domain() -> None:
    for name in ("sqrtm(NewtonSchulz)", "inv_sqrtm(NewtonSchulz)", "inv_root(4, NewtonSchulz)"):
        assert "1 of 2 matrices" in refuses(DefinitenessError, name, ROOTS[name], torch.stack([torch.eye(3), NEGATIVE]))
    for bad in (SINGULAR, torch.zeros(2, 2)):
        for name in ("inv_sqrtm(NewtonSchulz)", "inv_root(4, NewtonSchulz)"):
            assert "singular" in refuses(DefinitenessError, name, ROOTS[name], bad)
        assert "full rank" in refuses(DefinitenessError, "polar", POLARS["polar(NewtonSchulz)"], bad)


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient": sg.PowerIteration(5)}, {"solver": sg.PowerDeflation(5, torch.Generator())}],
    ids=["default", "PowerIteration", "PowerDeflation"],
)
def test_energy_of_an_indefinite_matrix(options: dict[str, Any]) -> None:
    message = refuses(DefinitenessError, "projector", sg.projector, NEGATIVE, energy=0.5, **options)
    assert "must be positive semi-definite" in message


@pytest.mark.parametrize("gradient", [None, sg.Lorentzian()], ids=["exact", "lorentzian"])
def test_exponential_overflows(gradient: Any) -> None:
    M = torch.eye(2) * torch.tensor([80.0, 90.0])[:, None, None]
    message = refuses(NonFiniteError, "expm", sg.expm, M, gradient=gradient)
    assert "exponential of the largest eigenvalue, 90, overflows torch.float32 (limit 88.72)" in message
    assert sg.expm(M.double(), gradient=gradient).isfinite().all()
    assert sg.expm(-M, gradient=gradient).isfinite().all()


# Options


@pytest.mark.parametrize("wrong", ["exact", sg.Exact, sg.Auto, 3], ids=["string", "rule class", "solver class", "number"])
@each(EIGEN | SINGULAR_VALUES)
def test_gradient_and_solver_are_objects(name: str, function: Call, wrong: object) -> None:
    message = refuses(OptionError, name, function, positive(), gradient=wrong)
    assert "gradient must be a rule such as Exact(), Lorentzian(), Taylor(9), Clip(100.), Analytic()" in message
    assert repr(wrong) in message
    message = refuses(OptionError, name, function, positive(), solver=wrong)
    assert "solver must be" in message
    assert repr(wrong) in message


@each(SINGULAR_VALUES)
def test_power_iteration_is_for_eigenvalues(name: str, function: Call) -> None:
    message = refuses(OptionError, name, function, positive(), gradient=sg.PowerIteration(3))
    assert "PowerIteration(19), got" not in message  # what is refused must not be recommended
    refuses(OptionError, name, function, positive(), solver=sg.PowerDeflation(3))


@each(EIGEN)
def test_solvers_that_bring_their_own_gradient(name: str, function: Call) -> None:
    for gradient in (sg.Exact(), sg.Lorentzian(), sg.PowerIteration(3)):
        message = refuses(OptionError, name, function, positive(), gradient=gradient, solver=sg.PowerDeflation(3))
        assert "PowerDeflation brings its own gradient" in message
    if name in ("sqrtm", "inv_sqrtm", "inv_root(4)"):
        for options in ({"floor": 1e-3}, {"gradient": sg.Exact()}):
            message = refuses(OptionError, name, function, positive(), solver=sg.NewtonSchulz(), **options)
            assert "leave out floor= and gradient=" in message
    else:
        assert "NewtonSchulz" in refuses(OptionError, name, function, positive(), solver=sg.NewtonSchulz())


def test_newton_schulz_and_singular_values() -> None:
    M, solver = positive(), sg.NewtonSchulz()
    assert "leave out gradient=" in refuses(OptionError, "polar", sg.polar, M, gradient=sg.Exact(), solver=solver)
    assert "must be Auto(), Lapack() or SVD()" in refuses(OptionError, "svd", sg.svd, M, solver=solver)
    assert "not both" in refuses(OptionError, "NewtonSchulz", sg.NewtonSchulz, tol=1e-3, steps=5)


MAP = torch.ones(2, 3, 4, 4)
ODD = (np.array([1, 2]), np.array("affine"), ["L"], {})
OPTIONS: list[tuple[str, Call, str, tuple[Any, ...], str]] = [
    ("NewtonSchulz", sg.NewtonSchulz, "tol", (0, 1, -0.1, NAN, "tight"), "tol must lie in (0, 1)"),
    ("NewtonSchulz", sg.NewtonSchulz, "steps", (0, -1, 1.5, "five", True), "steps must be a whole number >= 1"),
    ("projector", partial(sg.projector, positive()), "rank", (0, 4, -1, True, 1.5, "all"), "a whole number from 1 to 3"),
    ("projector", partial(sg.projector, positive(), rank=1), "smallest", (1, "yes", None, 0), "must be True or False"),
    ("projector", partial(sg.projector, positive()), "energy", (0, -0.5, 1.1, NAN, "most"), "energy must lie in (0, 1]"),
    ("powm", partial(sg.powm, positive()), "alpha", (NAN, INF, "half", True, None, 1j), "finite number"),
    (
        "powm",
        partial(sg.powm, positive()),
        "alpha",
        (torch.tensor(-INF), torch.ones(2), torch.tensor(2)),
        "real tensor of one",
    ),
    ("powm", partial(sg.powm, positive()), "alpha", (1e13, -1e308), "at most 1e+12"),
    ("covariance_pool", partial(sg.nn.functional.covariance_pool, MAP), "power", (1e300,), "at most 1e+12"),
    ("merge_moments", sg.merge_moments, "parts", (3, None, [], [3]), "parts must be at least one Moments"),
    ("spd.distance", partial(sg.spd.distance, positive(), positive()), "metric", ODD, 'metric must be "affine"'),
    ("eigh", partial(sg.eigh, positive()), "UPLO", ODD, "UPLO must be None"),
    ("DecorrelatedBatchNorm2d", partial(sg.nn.DecorrelatedBatchNorm2d, 4), "whitening", ODD, 'whitening must be "zca"'),
    ("DecorrelatedBatchNorm2d", partial(sg.nn.DecorrelatedBatchNorm2d, 4), "eps", (10**30,), "eps must be"),
    (
        "DecorrelatedBatchNorm2d",
        partial(sg.nn.DecorrelatedBatchNorm2d, 4),
        "track_running_stats",
        (torch.tensor(True), torch.ones(2)),
        "must be True or False",
    ),
    ("sqrtm", partial(sg.sqrtm, positive()), "floor", (10**30,), "a finite number"),
    ("spd.geodesic", partial(sg.spd.geodesic, positive(), positive()), "t", (10**30,), "must be a finite number"),
    ("Lorentzian", sg.Lorentzian, "rtol", (1e300, 10**30), "must be a positive number <= 1e+15"),
    ("inv_root", partial(sg.inv_root, positive()), "p", (0, -2, 2.0, NAN, "two", True, None), "a whole number >= 1"),
    ("covariance", partial(sg.covariance, positive()), "eps", (-1e-3, NAN, INF, "small"), "eps must be"),
    ("covariance", partial(sg.covariance, positive()), "correction", (NAN, -INF, "one"), "correction must be"),
    *(
        (name, partial(function, torch.ones(4, 7)), "group_size", (0, -2, 3, 8, 2.0, "two", True), "divides the 4 channels")
        for name, function in SAMPLES.items()
    ),
    *(
        ("pinv", partial(sg.pinv, positive()), option, (-1e-3, NAN, "small", True), "a finite number >= 0")
        for option in ("atol", "rtol")
    ),
    ("pinv", partial(sg.pinv, positive()), "hermitian", (1, None, "yes"), "must be True or False"),
    (
        "schatten_norm",
        partial(sg.schatten_norm, positive()),
        "p",
        (0.5, 0, -1, INF, NAN, "nuc", None),
        "a finite number >= 1",
    ),
    ("logdet", partial(sg.logdet, positive()), "floor", (NAN, INF, "low", 0.0, -1.0), "a finite number above 0"),
    *(
        (name, partial(EIGEN[case], positive()), "floor", (NAN, INF, -INF, "low"), "a finite number")
        for name, case in (FLOORED | FLOORED_ANYWHERE).items()
    ),
    *((name, partial(EIGEN[case], positive()), "floor", (0.0, -1.0), "above 0") for name, case in FLOORED.items()),
    *(
        (name, partial(EIGEN[case], positive().float()), "floor", (1e39, 1e-46), "no number of torch.float32")
        for name, case in (FLOORED | FLOORED_ANYWHERE).items()
    ),
    ("expm", partial(sg.expm, positive().float()), "floor", (-1e39,), "no number of torch.float32"),
]


@pytest.mark.parametrize("start", [torch.eye(3).to_sparse(), torch.empty(3, 3, device="meta"), "nested"], ids=str)
def test_a_start_without_numbers(start: Any) -> None:
    if isinstance(start, str):
        start = torch.nested.nested_tensor([torch.eye(3)], layout=torch.jagged)
    message = refuses(DtypeError, "eigh", sg.eigh, positive(), start=start)
    assert "must be a dense (strided) tensor" in message or "must hold numbers, got a meta tensor. Leave it out" in message


def test_pooling_in_another_dtype_than_its_reduction() -> None:
    pool = sg.nn.CovariancePool2d(3, reduced=2)
    assert "torch.float32, got torch.float64" in refuses(DtypeError, "CovariancePool2d", pool, MAP.double())
    with torch.autocast("cpu"):
        assert pool(torch.randn(4, 3, 4, 4).bfloat16()).isfinite().all()


@pytest.mark.parametrize(
    ("name", "function", "option", "value", "fragment"),
    [
        pytest.param(name, function, option, value, fragment, id=f"{name}({option}={value})")
        for name, function, option, values, fragment in OPTIONS
        for value in values
    ],
)
def test_bad_option(name: str, function: Call, option: str, value: Any, fragment: str) -> None:
    message = refuses(OptionError, name, function, **{option: value})
    assert option in message
    assert fragment in message
    assert repr(value) in message


def test_rank_or_energy() -> None:
    for options in ({}, {"rank": 1, "energy": 0.5}):
        assert "either rank= or energy=" in refuses(OptionError, "projector", sg.projector, positive(), **options)


def test_energy_of_the_smallest() -> None:
    message = refuses(OptionError, "projector", sg.projector, positive(), energy=0.5, smallest=True)
    assert "counted from the largest" in message
    assert "subtract it from the identity" in message


def test_samples_that_do_not_suffice() -> None:
    X = torch.ones(4, 7)
    for correction in (7, 8.5):
        message = refuses(ShapeError, "covariance", sg.covariance, X, correction=correction)
        assert f"more than {correction} samples in its last dimension, got 7" in message
    refuses(ShapeError, "covariance", sg.covariance, X[:, :0])
    assert "at least one" in refuses(OptionError, "merge_moments", sg.merge_moments, [])
    parts = [sg.moments(X), sg.moments(X[:3])]
    assert "[(3, 3), (4, 4)]" in refuses(ShapeError, "merge_moments", sg.merge_moments, parts)


@pytest.mark.parametrize("gradient", [None, sg.Lorentzian()], ids=["exact", "lorentzian"])
@pytest.mark.parametrize(
    ("f", "error", "fragment"),
    [
        pytest.param(3, OptionError, "f must be a function of a tensor, got 3", id="number"),
        pytest.param(None, OptionError, "f must be a function", id="none"),
        pytest.param(lambda x: x.sum(), ShapeError, "turned shape (3,) into ()", id="sum"),
        pytest.param(lambda x: x[..., :1], ShapeError, "turned shape (3,) into (1,)", id="slice"),
        pytest.param(lambda x: (x - 1.2).log(), NonFiniteError, "NaN or Inf at 1 of 3, the first 1.", id="nan"),
        pytest.param(lambda x: 1 / (x - x), NonFiniteError, "NaN or Inf at 3 of 3, the first 1.", id="inf"),
        pytest.param(lambda _: 2.0, OptionError, "f must", id="no tensor"),
        pytest.param(lambda x: torch.complex(x, x), OptionError, "f must", id="complex"),
    ],
)
def test_bad_function(f: Any, error: type[Exception], fragment: str, gradient: Any) -> None:
    assert fragment in refuses(error, "spectral_map", sg.spectral_map, positive(), f, gradient=gradient)


@pytest.mark.parametrize(
    ("f", "error", "fragment"),
    [
        pytest.param(3, OptionError, "f must be a function of a tensor, got 3", id="number"),
        pytest.param(lambda x: x.sum(), ShapeError, "turned shape (3,) into ()", id="sum"),
        pytest.param(lambda _: 2.0, OptionError, "f must return a real", id="no tensor"),
        pytest.param(lambda x: (x - 1.2).log(), NonFiniteError, "finite at every singular value", id="nan"),
        pytest.param(torch.cos, OptionError, "f(0) = 0, but it is 1 there", id="even"),
        pytest.param(lambda x: 1 / x, OptionError, "For 1/x use `pinv`", id="inverse"),
        pytest.param(lambda x: x + 0.01 * x * x, OptionError, "but f(2) = 2.04 and f(-2) = -1.96", id="nearly odd"),
    ],
)
def test_bad_function_of_singular_values(f: Any, error: type[Exception], fragment: str) -> None:
    assert fragment in refuses(error, "singular_map", sg.singular_map, positive(), f)


@each({"singular_map": OF_SINGULAR_VALUES["singular_map"], "logdet": sg.logdet})
def test_solvers_of_exact_functions(name: str, function: Call) -> None:
    for wrong in ("lapack", sg.Auto, 3, sg.NewtonSchulz(), sg.PowerDeflation(3)):
        message = refuses(OptionError, name, function, positive(), solver=wrong)
        assert "solver must be" in message
        assert repr(wrong) in message


# Switching the checks


def outputs(out: Any) -> tuple[Tensor, ...]:
    return tuple(out) if isinstance(out, tuple) else (out,)


@each(DECOMPOSED)
def test_checks_off(name: str, function: Call) -> None:
    skewed = torch.tensor([[2.0, 1.0], [0.0, 2.0]])
    with sg.checks(False):
        assert all(x.isnan().all() for x in outputs(function(torch.full((3, 3), NAN))))
        if name in SQUARE:
            torch.testing.assert_close(outputs(function(skewed)), outputs(function((skewed + skewed.mT) / 2)))
        refuses(ShapeError, name, function, torch.ones(3))  # looks at no value, so it stays


def test_checks_off_counts() -> None:
    before = sg.counts()
    with sg.checks(False):
        assert sg.sqrtm(NEGATIVE).isfinite().all()
        assert sg.inv_sqrtm(SINGULAR).isfinite().all()
        sg.eigh(torch.full((3, 3), NAN))
        sg.svd(torch.full((2, 3, 3), NAN))
        assert sg.inv_sqrtm(torch.zeros(3, 3)).isfinite().all()
    after = sg.counts()
    assert after["nonfinite_input"] - before.get("nonfinite_input", 0) == 3
    assert after["clamped_eigenvalue"] - before.get("clamped_eigenvalue", 0) == 2 + 3


def is_checked() -> bool:
    try:
        sg.eigh(torch.full((1, 1), NAN))
    except NonFiniteError:
        return True
    return False


def test_checks_are_on_or_off() -> None:
    with pytest.raises(OptionError, match="`checks`: enabled must be True or False, got 3"), sg.checks(3):  # type: ignore[arg-type]
        pass


def test_checks_nest_and_come_back() -> None:
    assert is_checked()
    with sg.checks(False):
        assert not is_checked()
        with sg.checks(True):
            assert is_checked()
        assert not is_checked()
        with pytest.raises(NonFiniteError), sg.checks(True):
            sg.eigh(torch.full((1, 1), NAN))
        assert not is_checked()
    assert is_checked()
    with pytest.raises(KeyError), sg.checks(False):
        raise KeyError
    assert is_checked()


def test_checks_belong_to_the_thread() -> None:
    seen: list[bool] = []
    inside, looked = threading.Event(), threading.Event()

    def other() -> None:
        with sg.checks(False):
            inside.set()
            looked.wait(10)
            seen.append(is_checked())

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    assert is_checked()  # while the other thread is inside its block
    looked.set()
    thread.join()
    assert seen == [False]
    with sg.checks(False):
        thread = threading.Thread(target=lambda: seen.append(is_checked()))
        thread.start()
        thread.join()
    assert seen == [False, True]


def test_vmap_counts_instead() -> None:
    before = sg.counts().get("nonfinite_input", 0)
    out = torch.func.vmap(sg.sqrtm)(torch.stack([torch.eye(2), torch.full((2, 2), NAN)]))
    assert torch.equal(out[0], torch.eye(2))
    assert out[1].isnan().all()
    assert sg.counts()["nonfinite_input"] == before + 1


def test_checks_on_under_vmap() -> None:
    with sg.checks(True), pytest.raises(NonFiniteError):
        torch.func.vmap(sg.sqrtm)(torch.full((2, 2, 2), NAN))


# Shapes, layouts and dtypes that must just work


def loss(out: Any) -> Tensor:
    """Every differentiable entry of the output with a weight of its own."""
    total = torch.zeros(())
    for i, x in enumerate(outputs(out)):
        if x.requires_grad:
            weight = cases.random(*x.shape, dtype=torch.complex128 if x.is_complex() else torch.float64, seed=i + 7)
            total = total + (x * weight.to(x.dtype)).real.sum()
    return total


def run(function: Call, M: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """Outputs and the gradient of `loss`, after making sure that the input is untouched."""
    copy = M.clone()
    leaf = M.detach().requires_grad_()
    out = outputs(function(leaf))
    (gradient,) = torch.autograd.grad(loss(out), leaf)
    assert torch.equal(M, copy)
    assert gradient.dtype == M.dtype
    return tuple(x.detach() for x in out), gradient


@each(ALL)
def test_sizes_zero_and_one(name: str, function: Call) -> None:
    scalar = {"sqrtm": 2, "inv_sqrtm": 0.5, "powm(0.3)": 4**0.3, "inv_root(4)": 4**-0.25, "logm": math.log(4)}
    scalar |= {
        "expm": math.exp(4),
        "spectral_map": math.sin(1.3 * 4) + math.log(4),
        "projector(energy)": 1,
        "eigh": 4,
        "polar": 1,
        "covariance": 0,
    }
    scalar |= {
        "singular_map": math.sin(1.3 * 4) + 64,
        "pinv": 0.25,
        "nuclear_norm": 4,
        "schatten_norm": 4,
        "logdet": math.log(4),
    }
    M = torch.full((2, 1, 1), 4.0, dtype=torch.float64)
    out, gradient = run(function, M)
    if name in scalar:
        torch.testing.assert_close(out[0].flatten(), torch.full((2,), float(scalar[name]), dtype=torch.float64))
    assert gradient.isfinite().all()
    if name in ("projector(rank)", "projector(smallest)"):
        refuses(OptionError, name, function, torch.zeros(0, 0))  # no rank fits
    elif name != "covariance":  # which has no samples then
        for shape in ((0, 0), (2, 0, 0)):
            out, gradient = run(function, torch.zeros(shape))
            assert gradient.shape == shape
            if name in NUMBERS:
                assert torch.equal(out[0], torch.zeros(shape[:-2]))
            else:
                assert all(x.numel() == 0 for x in out[name == "moments" :])


@each(DECOMPOSED)
def test_second_derivatives_of_nothing(name: str, function: Call) -> None:
    for shape in ((0, 3, 3), (2, 0, 0)):
        if shape == (2, 0, 0) and name in ("projector(rank)", "projector(smallest)"):
            continue  # no rank fits
        M = torch.zeros(shape, requires_grad=True)
        (first,) = torch.autograd.grad(loss(outputs(function(M))), M, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), M)
        assert second.shape == shape


def relative_floor(function: Call, M: Tensor, **options: Any) -> Any:
    return function(M, floor=1e-6 * float(M.detach().abs().max()), **options)


BOUNDED: dict[str, Call] = EIGEN | SINGULAR_VALUES
BOUNDED |= {
    name: partial(relative_floor, EIGEN[name]) for name in ("inv_sqrtm", "powm(-1.7)", "inv_root(3)", "inv_root(4)", "logm")
}
BOUNDED |= {"expm": lambda M, **options: sg.expm(M / M.detach().abs().max(), **options)}  # e^(1e8) overflows
BOUNDED |= {"spectral_map": partial(sg.spectral_map, f=torch.atan)}
BOUNDED |= {"svd(tall)": lambda M, **options: sg.svd(torch.cat([M, M], -2), **options)}


@each(BOUNDED)
def test_gradients_are_finite(name: str, function: Call) -> None:
    failed = []
    for spectrum in cases.SPECTRA:
        for scale in cases.SCALES:
            for dtype in (torch.float32, torch.float64):
                M = cases.with_spectrum(scale * spectrum(6), dtype=dtype)
                for rule in (None, *cases.BOUNDED_RULES):
                    out, gradient = run(partial(function, gradient=rule), M)
                    if not all(x.isfinite().all() for x in (*out, gradient)):
                        failed.append((spectrum.__name__, scale, dtype, rule))
    assert not failed


def test_the_analytic_gradient_is_not_finite() -> None:
    """The control: what the others are bounded against."""
    for name, function in (EIGEN | SINGULAR_VALUES).items():
        if not name.startswith("projector"):
            _, gradient = run(partial(function, gradient=sg.Analytic()), torch.eye(3))
            assert not gradient.isfinite().all(), name


PAIRS = {name: case for name, case in BY_NAME.items() if case.others(case.input())}  # functions of two tensors and more


@each(PAIRS)
def test_tensors_on_two_devices(name: str, function: Case) -> None:
    first = function.input().float()
    second, *rest = (x.clone() for x in function.others(first))
    who = function.function.removeprefix("nn.functional.")
    for pair in ((first, second.to("meta"), *rest), (first.to("meta"), second, *rest)):
        with pytest.raises(
            DeviceError, match=rf"`{who}`: all tensors must lie on one device, got .*(cpu, .*meta|meta, .*cpu)"
        ):
            function.call(*pair)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@each(ALL | {"spd.mean": sg.spd.mean})
def test_nested_tensors(name: str, function: Call) -> None:
    with pytest.raises(DtypeError, match="to_padded_tensor"):
        function(torch.nested.nested_tensor([torch.eye(2), torch.eye(2)]))


@pytest.mark.parametrize(("dtype", "wider"), [(torch.float32, True), (torch.float64, False)])
def test_a_wider_dtype_is_advised_where_there_is_one(dtype: torch.dtype, wider: bool) -> None:
    message = message_of(NonFiniteError, sg.expm, 1e4 * torch.eye(2, dtype=dtype))
    assert message.endswith("Scale M down, or use float64." if wider else "Scale M down.")


def test_what_caught_torch_s_errors_catches_ours() -> None:
    """`except torch.linalg.LinAlgError`, and so RuntimeError, around a decomposition; ValueError stays."""
    for kind in (torch.linalg.LinAlgError, RuntimeError, ValueError):
        with pytest.raises(kind):
            sg.eigh(torch.full((2, 2), torch.nan))
    assert issubclass(sg.errors.ConvergenceError, torch.linalg.LinAlgError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_the_exponential_of_a_mean_of_logarithms(dtype: torch.dtype) -> None:
    """A step of Karcher's near its end: differences of matrices of size 1, which come out small."""
    for seed in range(10):
        X = cases.random(30, 8, 24, dtype=dtype, seed=seed)
        X = X @ X.mT / 24
        S = sg.inv_sqrtm(sg.spd.mean(X))
        step = sg.expm(sg.logm(S @ X @ S).mean(0))
        torch.testing.assert_close(step, torch.eye(8, dtype=dtype), rtol=0, atol=1e-2)
    noise = 8 * cases.eps(dtype) * torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=dtype)
    sg.expm(noise)
    with pytest.raises(sg.errors.SymmetryError):
        sg.expm(100 * noise)


@pytest.mark.parametrize("name", ["eigh", "svd", "eigvalsh", "svdvals"])
def test_ours_in_the_place_of_torch_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own calls of torch were bound before: no circle."""
    M = cases.random_covariance(40, 80, dtype=torch.float64)
    expected = getattr(sg, name)(M)
    monkeypatch.setattr(torch.linalg, name, getattr(sg, name))
    torch.testing.assert_close(tuple(getattr(torch.linalg, name)(M)), tuple(expected))

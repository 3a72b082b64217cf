"""The one door: what ``gradient=`` and ``solver=`` may be and mean, and every choice by device, dtype, size and batch.

A function or a layer asks here once and gets a *choice*, which says the way to go and holds what that way needs:

    way                 the decomposition         its gradient
    "exact"             an eigensolver or SVD     divided differences: no eigenvector is differentiated
    "rule"              an eigensolver or SVD     a rule's coefficients K in the place of 1/(l_j - l_i)
    "power iteration"   an eigensolver            NIPS19 Alg. 1, `PowerIteration`
    "deflation"         power iterations          through them, `PowerDeflation`
    "products"          none: matrix products     a Lyapunov equation, or the steps themselves: `NewtonSchulz`

    asked with               eigh, PCA      roots, powers, log, exp, spectral_map   projector     svd          polar
    gradient=None            Lorentzian     exact                                   Lorentzian    Lorentzian   exact
    gradient=Exact()         rule           exact                                   rule          rule         exact
    gradient=another rule    rule           rule                                    rule          rule         rule
    gradient=PowerIteration  power it.      power iteration                         power it.     refused      refused
    solver=PowerDeflation    deflation      deflation                               deflation     refused      refused
    solver=NewtonSchulz      refused        products: powers 1/2, -1/2 and -1/4     refused       refused      products

`PowerDeflation` and `NewtonSchulz` bring their own gradient: with ``gradient=`` they are refused.
"""

import math
from typing import Literal, NamedTuple, TypeGuard

import torch
from torch import Tensor

from spectralgrad.errors import DtypeError, OptionError

from .power.deflation import PowerDeflation
from .power.iteration import PowerIteration
from .precision import widest
from .products.iteration import product_dtype
from .products.newton_schulz import NewtonSchulz
from .rules import Exact, Lorentzian, Rule
from .scalars import Root, Scalar
from .solvers import AUTO as AUTO  # the default of every solver=
from .solvers import SVD, Jacobi, Lapack, Solver
from .solvers import Auto as Auto

Gradient = Rule | PowerIteration
EigenSolver = Solver | PowerDeflation
RootSolver = EigenSolver | NewtonSchulz
Whitening = Literal["zca", "pca"]

_ONE_BLOCK = 128  # up to this n roots are taken by eigenvectors there, and beyond it by products
_INVERSE_ROOTS: tuple[Root, ...] = ("inverse sqrt", "inverse fourth root")  # no singular matrix, where products are rough
_LORENTZIAN, _EXACT, _NEWTON = Lorentzian(), Exact(), NewtonSchulz()


# What the door gives. `way` tells them apart, for people and for mypy.


class Exactly(NamedTuple):
    """Divided differences of the function itself."""

    solver: Solver
    way: Literal["exact"] = "exact"


class ByRule(NamedTuple):
    """Eigenpairs or singular triplets from the solver, their gradient from the rule."""

    solver: Solver
    rule: Rule
    way: Literal["rule"] = "rule"


class ByPowerIteration(NamedTuple):
    """Eigenpairs from the solver, their gradient from NIPS19 Alg. 1."""

    solver: Solver
    power: PowerIteration
    way: Literal["power iteration"] = "power iteration"


class ByDeflation(NamedTuple):
    """Power iterations, differentiated through."""

    power: PowerDeflation
    way: Literal["deflation"] = "deflation"


class ByProducts(NamedTuple):
    """Matrix products alone."""

    newton: NewtonSchulz
    way: Literal["products"] = "products"


ByEigenpairs = ByRule | ByPowerIteration | ByDeflation
_USUAL_PAIRS, _USUAL_FUNCTION = ByRule(AUTO, _LORENTZIAN), Exactly(AUTO)

# Functions.


def for_eigenpairs(who: str, gradient: Gradient | None, solver: EigenSolver) -> ByEigenpairs:
    """How `eigh` and `projector` decompose and differentiate."""
    if gradient is None and solver is AUTO:  # as most ask: no time is lost at the door
        return _USUAL_PAIRS
    if isinstance(solver, PowerDeflation):
        _require_no_gradient(who, gradient, solver)
        return ByDeflation(solver)
    _require_solver(who, solver)
    if isinstance(gradient, PowerIteration):
        return ByPowerIteration(solver, gradient)
    return ByRule(solver, _LORENTZIAN if gradient is None else _require_rule(who, gradient))


def for_function(
    who: str, M: Tensor, gradient: Gradient | None, solver: RootSolver, scalar: Scalar
) -> Exactly | ByEigenpairs | ByProducts:
    """How V f(L) V^H of ``M`` (*B, n, n) is computed, f being the scalar."""
    if scalar.floor is not None:
        scalar.require_floor(who, M.dtype)
    if isinstance(solver, NewtonSchulz):
        if scalar.floor is not None or gradient is not None:
            raise OptionError(
                f"`{who}`: NewtonSchulz has no eigenvalues to clamp and brings its own gradient; leave out floor= and "
                "gradient=, or take another solver."
            )
        if scalar.root is None:
            raise OptionError(
                f"`{who}`: NewtonSchulz computes square roots, inverse square roots and inverse fourth roots only; take "
                "another solver."
            )
        return ByProducts(solver)
    if not is_exact(gradient, solver):
        return for_eigenpairs(who, gradient, solver)
    by_products = scalar.root in _INVERSE_ROOTS and scalar.floor is None and isinstance(solver, Auto)
    if by_products and roots_by_products(M):
        return ByProducts(_NEWTON)
    return _USUAL_FUNCTION if solver is AUTO else Exactly(_require_solver(who, solver))


def for_exact(who: str, solver: Solver) -> Exactly:
    """How a function with its exact gradient alone decomposes."""
    return Exactly(_require_solver(who, solver))


def for_generalized(who: str, gradient: Rule | None, solver: Solver) -> ByRule:
    """How `generalized_eigh` decomposes and differentiates."""
    _require_solver(who, solver)
    return ByRule(solver, _LORENTZIAN if gradient is None else _require_rule(who, gradient, power_iteration=False))


def for_svd(who: str, gradient: Rule | None, solver: Solver) -> ByRule:
    """How `svd` decomposes and differentiates."""
    _require_svd_solver(who, solver)
    return ByRule(solver, _LORENTZIAN if gradient is None else _require_rule(who, gradient, power_iteration=False))


def for_polar(who: str, gradient: Rule | None, solver: Solver | NewtonSchulz) -> Exactly | ByRule | ByProducts:
    """How `polar` is computed: exactly by an SVD, through singular vectors with a rule, or by products."""
    if isinstance(solver, NewtonSchulz):
        _require_no_gradient(who, gradient, solver)
        return ByProducts(solver)
    _require_svd_solver(who, solver)
    if is_exact(gradient, solver):
        return Exactly(solver)
    return ByRule(solver, _require_rule(who, gradient, power_iteration=False))


def for_one_polar(A: Tensor) -> Solver | NewtonSchulz:
    """The solver for the polar factor of one matrix ``A`` (m, n) of any rank, whose null space does not matter.

    On CUDA large real ones go by products, which use the whole device and never wait. Singular values below eps |A| they
    raise to something between 0 and 1, where an SVD has some orthonormal vectors of rounding.
    """
    large = min(A.shape[-2:]) > _ONE_BLOCK
    return _NEWTON if large and A.device.type == "cuda" and not A.is_complex() else AUTO


def chooses_kernels(solver: RootSolver) -> bool:
    """Whether a kernel may stand for the solver where one runs."""
    return isinstance(solver, Auto)


def is_exact(gradient: Gradient | None, solver: RootSolver) -> bool:
    """Whether these options ask for the exact gradient of a spectral function."""
    return (gradient is None or isinstance(gradient, Exact)) and not isinstance(solver, PowerDeflation)


def roots_by_products(M: Tensor) -> bool:
    """Whether a root of ``M`` (*B, n, n) is faster by matrix products than by eigenvectors: large real ones on CUDA.

    Up to n = 128 our kernels decompose. `make test-gpu` compares both ways, docs/speed.md has their times.
    """
    return M.device.type == "cuda" and not M.is_complex() and M.shape[-1] > _ONE_BLOCK and math.prod(M.shape[:-2]) > 0


# Layers.


def for_whitening(who: str, whitening: Whitening, gradient: Gradient | None, solver: RootSolver) -> Gradient | None:
    """The gradient that a whitening layer takes; None where the solver brings its own."""
    if isinstance(solver, NewtonSchulz):
        if whitening == "pca":
            raise OptionError(f'`{who}`: NewtonSchulz has no eigenvectors; with whitening="pca" take another solver.')
        _require_no_gradient(who, gradient, solver)
        return None
    return _layer_gradient(who, gradient, solver, _EXACT if whitening == "zca" else _LORENTZIAN)


def for_denoising(who: str, gradient: Gradient | None, solver: EigenSolver) -> Gradient | None:
    """The gradient that PCA denoising takes; None where the solver brings its own."""
    return _layer_gradient(who, gradient, solver, _LORENTZIAN)


def require_root_options(who: str, gradient: Gradient | None, solver: RootSolver, power: float = 0.5) -> None:
    """Raise unless a power of covariances can be taken with these."""
    if isinstance(solver, NewtonSchulz):
        _require_no_gradient(who, gradient, solver)
        if power != 0.5:
            raise OptionError(f"`{who}`: NewtonSchulz computes square roots only, got power={power}; take another solver.")
        return
    for_eigenpairs(who, gradient, solver)


def knows_no_eigenvalues(solver: RootSolver) -> TypeGuard[NewtonSchulz]:
    """Whether the solver takes matrix products alone, so that there is nothing to clamp."""
    return isinstance(solver, NewtonSchulz)


def is_plain_products(solver: RootSolver) -> bool:
    """Whether the solver is a fixed number of plain matrix products, which every backend knows."""
    return isinstance(solver, NewtonSchulz) and solver.steps is not None


def is_differentiated_through(solver: RootSolver) -> bool:
    """Whether autograd has to look into the solver, so that no node of ours can stand around it."""
    return isinstance(solver, PowerDeflation)


def solver_of_exact(gradient: Gradient | None, solver: RootSolver) -> Solver | None:
    """The eigensolver, where the options ask for the exact gradient of a function by eigenpairs."""
    return solver if isinstance(solver, Solver) and is_exact(gradient, solver) else None


def takes_jacobi_kernel(gradient: Gradient | None, solver: RootSolver) -> bool:
    """Whether the options ask for the exact gradient by a solver that the Jacobi kernel may stand for where it runs."""
    return isinstance(solver, (Auto, Jacobi)) and is_exact(gradient, solver)


class ForPower(NamedTuple):
    """How a power of covariances is taken: by what, in which dtype, and whether its gradient is exact."""

    gradient: Gradient | None
    solver: RootSolver
    dtype: torch.dtype
    exact: bool


def for_covariance_power(X: Tensor, power: float, gradient: Gradient | None, solver: RootSolver) -> ForPower:
    """How the power of the covariance of ``X`` (*B, C, n) is taken: `Auto` takes square roots by products on a GPU whose
    float64 is fast."""
    exact = is_exact(gradient, solver)
    if power == 0.5 and isinstance(solver, Auto) and exact and covariances_by_products(X):
        gradient, solver = None, _NEWTON
    dtype = torch.promote_types(X.dtype, torch.float32)
    return ForPower(gradient, solver, dtype if power == 1 else covariance_dtype(X, dtype, solver), exact)


def covariances_by_products(X: Tensor) -> bool:
    """Whether the root of a covariance is faster by matrix products than by eigenvectors: on a GPU with fast float64."""
    return X.device.type == "cuda" and product_dtype(X) == torch.float64


def covariance_dtype(X: Tensor, dtype: torch.dtype, solver: RootSolver) -> torch.dtype:
    """What covariances of ``X`` are taken in. Newton-Schulz to convergence needs singular ones to be so to more than
    float32's rounding; the baseline of a few steps reaches no small eigenvalue anyway."""
    if not (isinstance(solver, NewtonSchulz) and solver.steps is None):
        return dtype
    if widest(X) != torch.float64:
        raise DtypeError(
            f"`NewtonSchulz`: covariances are taken in float64, which {X.device.type} has not. Use another solver, "
            "NewtonSchulz(steps=5), or the CPU."
        )
    return torch.float64


def _layer_gradient(who: str, gradient: Gradient | None, solver: EigenSolver, default: Rule) -> Gradient | None:
    for_eigenpairs(who, gradient, solver)
    return default if gradient is None and not isinstance(solver, PowerDeflation) else gradient


# Refusals.


def _require_no_gradient(who: str, gradient: object, solver: NewtonSchulz | PowerDeflation) -> None:
    if gradient is not None:
        raise OptionError(
            f"`{who}`: {type(solver).__name__} brings its own gradient; leave out gradient={gradient}, or take another "
            "solver."
        )


def _require_solver(who: str, solver: object) -> Solver:
    if isinstance(solver, Solver):
        return solver
    raise OptionError(
        f"`{who}`: solver must be an eigensolver such as Auto(), Lapack(), SVD() or Jacobi(), got {_told(solver)}. "
        "NewtonSchulz() serves `sqrtm`, `inv_sqrtm`, `inv_root` and `powm` at 1/2, -1/2 and -1/4, and `polar`."
    )


def _require_svd_solver(who: str, solver: object) -> None:
    if not isinstance(solver, (Auto, Lapack, SVD)):
        raise OptionError(f"`{who}`: solver must be Auto(), Lapack() or SVD() for singular values, got {_told(solver)}.")


def _require_rule(who: str, gradient: object, power_iteration: bool = True) -> Rule:
    if isinstance(gradient, Rule):
        return gradient
    last = "Analytic() or PowerIteration(19)" if power_iteration else "Analytic()"
    raise OptionError(
        f"`{who}`: gradient must be a rule such as Exact(), Lorentzian(), Taylor(9), Clip(100.), {last}, got "
        f"{_told(gradient)}."
    )


def _told(option: object) -> str:
    """An option in an error. A class in the place of an object is a slip that is easily made."""
    return f"{option!r}, a class: write {option.__name__}(...)" if isinstance(option, type) else repr(option)

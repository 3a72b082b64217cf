"""The section on what people build on a decomposition, beside the usual ways: optimizers, alignment, Frechet's distance.

Errors are those of float32 against float64 and formulas of this file: roots by torch.linalg.eigh, Frechet's distance by
torch.linalg.svdvals, whose gradient U V^T has no gap in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import spectralgrad as sg

from . import peers
from .case import Case
from .inputs import covariances, normal, rotated, symmetric
from .measure import SETS, Call, Effort, measure, timed_row
from .on_request import BY_PRODUCTS, FID, FID_ERROR, FID_WAYS, KABSCH, PROCRUSTES, SHAMPOO, SOAP
from .rows import Row, raised

Basis = Callable[[int], Tensor]  # of the moments of this set
Distance = Callable[[Tensor, Tensor], Tensor]
NEW = 0.05  # the part of a moment that five steps with beta = 0.99 renew
ROW = 10  # calls one after the other, as a training makes them: on a GPU the host need not wait for each
DAMPING = 1e-8


def time_uses(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """How many times faster than the usual way, and for optimizers and distances the error of both."""
    rows: list[Row] = _TASKS[case.function](case, device, effort)
    return rows


def _errors(case: Case, name: str, found: Mapping[str, Callable[[], float]], baseline: str, target: float | None) -> Row:
    """A row of errors; what another than ours raises is noted."""
    errors, failed = {}, {}
    for method, error in found.items():
        try:
            errors[method] = error()
        except Exception as problem:  # whatever it raises is its result
            if method == peers.OURS:
                raise
            failed[method] = raised(problem)
    figure, what = errors[peers.OURS], f"{name}, {case.label}" if case.label else name
    row = Row(case.section, what, case.d, case.batch, "error", figure, None, target, False, baseline)
    return replace(row, errors=errors, failed=failed, function=case.function)


def _worst(found: Tensor, exact: Tensor) -> float:
    """The largest relative error, in Frobenius' norm, of a batch (*B, m, n); NaN where an entry is not finite."""
    size = torch.linalg.vector_norm(exact, dim=(-2, -1))
    distance = torch.linalg.vector_norm(found.double() - exact, dim=(-2, -1))
    return float((distance / size).max())


# Optimizers: B weights d x d with the moments of both of their sides, (2, B, d, d).


def _moments(case: Case, device: torch.device, seed: int) -> Tensor:
    """Of condition number 1e5: what many gradients that have much in common leave."""
    return rotated(case.d, 2 * case.batch, device, seed).reshape(2, case.batch, case.d, case.d)


def torch_root(M: Tensor) -> Tensor:
    """M^(-1/4) as Shampoo's authors and most after them have it."""
    return peers.by_eigenpairs(lambda w: w.clamp(min=torch.finfo(w.dtype).tiny) ** -0.25)(M)


def _shampoo(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """L^(-1/4) G R^(-1/4)."""
    moments = [_moments(case, device, seed) for seed in range(SETS)]
    G = normal(case.batch, case.d, case.d, device=device, seed=SETS)
    solver = sg.NewtonSchulz() if case.function == BY_PRODUCTS else sg.Auto()
    roots: dict[str, peers.Root] = {peers.OURS: lambda M: sg.inv_root(M, 4, solver=solver), peers.TORCH_EIGH: torch_root}

    def step(root: peers.Root, i: int) -> Tensor:
        left, right = root(moments[i])
        moved: Tensor = left @ G @ right
        return moved

    exact = torch_root(moments[0].double())
    errors = {name: lambda root=root: _worst(root(moments[0]), exact) for name, root in roots.items()}
    ours, usual = (partial(step, root) for root in roots.values())
    times = measure(ours, (peers.TORCH_EIGH, usual), {}, device, effort)
    timed = timed_row(case, times, peers.TORCH_EIGH, at_least=True)
    return [timed, _errors(case, "error of the root", errors, peers.TORCH_EIGH, None)]


def _soap(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Q_L (Q_L^T G Q_R / scale) Q_R^T with new eigenvectors Q, from those of the moments five steps ago."""
    old = [_moments(case, device, seed) for seed in range(SETS)]
    before = [torch.linalg.eigh(M.double())[1].float() for M in old]
    level = old[0].diagonal(dim1=-2, dim2=-1).mean()
    fresh = level * covariances(case.d, 2 * case.batch, device).reshape(old[0].shape)
    moments = [symmetric((1 - NEW) * M + NEW * fresh) for M in old]
    G, square = (normal(case.batch, case.d, case.d, device=device, seed=SETS + i) for i in range(2))
    scale = square.abs() + DAMPING
    bases: dict[str, Basis] = {
        peers.OURS: lambda i: sg.eigh(moments[i], start=before[i]).eigenvectors,
        peers.TORCH_EIGH: lambda i: torch.linalg.eigh(moments[i])[1],
    }

    def step(basis: Basis, i: int) -> Tensor:
        left, right = basis(i)
        moved: Tensor = left @ ((left.mT @ G @ right) / scale) @ right.mT
        return moved

    def off_diagonal(basis: Basis) -> float:
        Q, M = basis(0).double(), moments[0].double()
        D = Q.mT @ M @ Q
        return _worst(D - torch.diag_embed(D.diagonal(dim1=-2, dim2=-1)) + M, M)

    errors = {name: partial(off_diagonal, basis) for name, basis in bases.items()}
    with torch.no_grad():
        ours, usual = (partial(step, basis) for basis in bases.values())
        times = measure(ours, (peers.TORCH_EIGH, usual), {}, device, effort)
        checked = _errors(case, "off-diagonal part of Q^T M Q", errors, peers.TORCH_EIGH, None)
    return [timed_row(case, times, peers.TORCH_EIGH, at_least=True), checked]


# Alignment, forward + backward. Without roma the usual way by hand is in its place, and there is no target.


def torch_rotation(A: Tensor) -> Tensor:
    """The nearest rotation by torch.linalg.svd and autograd."""
    U, _, Vh = torch.linalg.svd(A)
    sign = torch.linalg.det(U @ Vh).detach()[..., None]
    last = torch.cat([torch.ones_like(A[..., 0, :-1]), sign], -1)
    R: Tensor = (U * last.unsqueeze(-2)) @ Vh
    return R


def torch_kabsch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """R and t by `torch_rotation`."""
    mx, my = x.mean(-2, keepdim=True), y.mean(-2, keepdim=True)
    R = torch_rotation((y - my).mT @ (x - mx))
    return R, (my - mx @ R.mT).squeeze(-2)


def _align(
    case: Case,
    device: torch.device,
    effort: Effort,
    ways: Mapping[str, Callable[..., tuple[Tensor, ...] | Tensor]],
    inputs: int,
) -> list[Row]:
    shape = (case.batch, *case.shape)
    leaves = [
        [normal(*shape, device=device, seed=inputs * seed + i).requires_grad_() for i in range(inputs)]
        for seed in range(SETS)
    ]
    with torch.no_grad():
        found = ways[peers.OURS](*leaves[0])
    parts = (found,) if isinstance(found, Tensor) else tuple(found)
    cotangents = [normal(*part.shape, device=device, seed=100 + i) for i, part in enumerate(parts)]

    def both(f: Callable[..., tuple[Tensor, ...] | Tensor]) -> Call:
        def call(i: int) -> object:
            out = f(*leaves[i])
            return torch.autograd.grad([out] if isinstance(out, Tensor) else list(out), leaves[i], cotangents)

        return call

    (_, ours), (baseline, usual), *rest = ways.items()
    others = {name: partial(both, f) for name, f in rest}
    rows = [timed_row(case, measure(both(ours), (baseline, both(usual)), others, device, effort), baseline, at_least=True)]
    if device.type == "cuda":
        times = measure(_in_a_row(both(ours)), (baseline, _in_a_row(both(usual))), {}, device, effort)
        row = timed_row(case, times, baseline, at_least=True)
        rows.append(replace(row, case=f"{row.case}, {ROW} calls in a row"))
    return rows if baseline == peers.ROMA else [replace(row, target=None) for row in rows]


def _in_a_row(call: Call) -> Call:
    def calls(i: int) -> None:
        for _ in range(ROW):
            call(i)

    return calls


def _procrustes(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    theirs = peers.roma_procrustes()
    ways = {peers.OURS: lambda A: sg.procrustes(A, special=True), peers.ROMA: theirs, peers.TORCH_SVD: torch_rotation}
    return _align(case, device, effort, {name: f for name, f in ways.items() if f is not None}, 1)


def _kabsch(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    ways = {peers.OURS: sg.kabsch, peers.ROMA: peers.roma_kabsch(), peers.TORCH_SVD: torch_kabsch}
    return _align(case, device, effort, {name: f for name, f in ways.items() if f is not None}, 2)


# Frechet's distance of two sets of B samples of d features, forward + backward to one of them.


def _centred(x: Tensor) -> Tensor:
    X: Tensor = (x - x.mean(0)) / (len(x) - 1) ** 0.5
    return X


def torch_fid(x: Tensor, y: Tensor) -> Tensor:
    """By the d x d covariances: tr (C1 C2)^(1/2) is the sum of the roots of the eigenvalues of C1^(1/2) C2 C1^(1/2)."""
    X, Y = _centred(x), _centred(y)
    C1, C2 = X.mT @ X, Y.mT @ Y
    root = peers.by_eigenpairs(lambda w: w.clamp(min=0).sqrt())(C2)
    overlap = torch.linalg.eigvalsh(root @ C1 @ root).clamp(min=0).sqrt().sum()
    distance: Tensor = (x.mean(0) - y.mean(0)).square().sum() + C1.trace() + C2.trace() - 2 * overlap
    return distance


def exact_fid(x: Tensor, y: Tensor) -> Tensor:
    """By the singular values of X Y^T."""
    X, Y = _centred(x), _centred(y)
    overlap = torch.linalg.svdvals(X @ Y.mT)[: min(len(x), len(y)) - 1].sum()  # the last is 0: centred rows sum to 0
    distance: Tensor = (x.mean(0) - y.mean(0)).square().sum() + X.square().sum() + Y.square().sum() - 2 * overlap
    return distance


def _fid(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    sets = [
        (
            normal(case.batch, case.d, device=device, seed=2 * seed).requires_grad_(),
            1.5 * normal(case.batch, case.d, device=device, seed=2 * seed + 1),
        )
        for seed in range(SETS)
    ]
    ways: dict[str, Distance] = dict(zip((peers.OURS, FID_WAYS), (sg.frechet_distance_of, torch_fid), strict=True))

    def value_and_gradient(f: Distance, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        value = f(x, y)
        return value.detach(), torch.autograd.grad(value, x)[0]

    ours, usual = (lambda i, f=f: value_and_gradient(f, *sets[i]) for f in ways.values())
    times = measure(ours, (FID_WAYS, usual), {}, device, effort)
    x, y = sets[0]
    exact = value_and_gradient(exact_fid, x.detach().double().requires_grad_(), y.double())

    def error(f: Distance, part: int) -> float:
        return _worst(value_and_gradient(f, x, y)[part].reshape(1, -1), exact[part].reshape(1, -1))

    rows = [timed_row(case, times, FID_WAYS, at_least=True)]
    for part, name in enumerate(("error of the value", "error of the gradient")):
        found = {method: partial(error, f, part) for method, f in ways.items()}
        rows.append(_errors(case, name, found, FID_WAYS, FID_ERROR))
    return rows


_TASKS = {SHAMPOO: _shampoo, BY_PRODUCTS: _shampoo, SOAP: _soap, PROCRUSTES: _procrustes, KABSCH: _kabsch, FID: _fid}

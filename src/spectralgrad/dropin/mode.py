"""The mode: which of torch's functions become ours inside `drop_in`, and which go on to torch."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from spectralgrad.context import compiling, is_constant
from spectralgrad.counters import count
from spectralgrad.errors import OptionError
from spectralgrad.linalg.choices import AUTO, for_svd
from spectralgrad.linalg.node import run
from spectralgrad.linalg.number import evaluate_number
from spectralgrad.linalg.rules import Rule

from .follow import FOLLOWED, TAKES_LISTS
from .parts import Basis, Numbers, Parts
from .values import eigh_step, nuclear_step, svd_step
from .whole import Source

__all__ = ["drop_in"]

TO_TORCH = "drop_in_to_torch"
Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])


class drop_in(TorchFunctionMode):
    """Inside this context, or a function decorated with it, torch's decompositions get gradients that are finite at ties.

    `torch.linalg.eigh`, `eigvalsh`, `svd`, `svdvals`, `matrix_norm` and `norm` ("nuc", 2, -2), `torch.svd` and
    `torch.norm("nuc")` keep their values and conventions; where torch would divide by a gap the rule does. A function of the
    matrix that is put together by hand, V f(w) V^H, is recognised when its parts meet, and gets its exact gradient:

        dM = V (F * (V^H G V)) V^H,   F_ij = (f(w_i) - f(w_j)) / (w_i - w_j),  F_ii = f'(w_i).

    It holds for the thread that entered it. docs/drop-in.md says what it cannot see.

    Args:
        gradient: the rule for single vectors; None means `Lorentzian()`. What is recognised is exact with any.

    Raises:
        OptionError: gradient is no rule; or a decomposition is met inside torch.compile.

    >>> import torch, spectralgrad as sg
    >>> M = torch.eye(3, requires_grad=True)
    >>> with sg.drop_in():
    ...     w, V = torch.linalg.eigh(M)  # in a library, say
    ...     (V @ torch.diag(w.rsqrt()) @ V.mT)[0, 1].backward()
    >>> M.grad[0, 1]
    tensor(-0.2500)
    """

    def __init__(self, gradient: Rule | None = None) -> None:
        super().__init__()
        self.gradient = gradient
        self._rule = for_svd("drop_in", gradient, AUTO).rule
        self._parts = Parts()
        self._said: set[str] = set()
        self._checkpoints = 0  # at work when this was entered

    def __enter__(self) -> "drop_in":
        self._checkpoints = _checkpoints()
        return super().__enter__()  # type: ignore[no-any-return]

    def __call__(self, function: Wrapped) -> Wrapped:
        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with drop_in(self.gradient):
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._parts.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        follow = FOLLOWED.get(func)
        if follow is not None:
            if known := self._parts.known:
                for x in args:  # an id of anything else is in it by no chance that matters
                    if id(x) in known:
                        return follow(self._parts, func, args, kwargs or {})
                if kwargs or func in TAKES_LISTS:
                    return follow(self._parts, func, args, kwargs or {})
            return func(*args, **kwargs) if kwargs else func(*args)
        ours = DECOMPOSITIONS.get(func)
        if ours is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        A = args[0] if args else kwargs.get("A", kwargs.get("input"))
        if not isinstance(A, Tensor):
            return func(*args, **kwargs)
        constant = is_constant(A)
        if not (constant and torch.is_grad_enabled()):
            self._refuse_checkpoint()
        if constant:
            return func(*args, **kwargs)
        made = ours(self, *args, **kwargs) if _is_plain(A) else NotImplemented
        if made is not NotImplemented:
            return made
        count(TO_TORCH)
        return func(*args, **kwargs)

    def _refuse_checkpoint(self) -> None:
        """A checkpoint runs its function again in the backward pass, where no mode of the forward pass is at work."""
        if not compiling() and _checkpoints() > self._checkpoints:
            raise OptionError(
                "`drop_in`: a decomposition was met inside torch.utils.checkpoint, which runs it again where this context "
                "does not reach. Put it inside: checkpoint(sg.drop_in()(function), x)."
            )

    def _eigh(self, M: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
        M = _cast_by_autocast(M)
        w, V = run(eigh_step(self._rule, UPLO, self._said), M)
        source = Source(M, (w.detach(), V.detach()))
        self._parts.put(w, Numbers(source))
        self._parts.put(V, Basis(source, "V"))
        return w, V

    def _svd(self, A: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor]:
        A = _cast_by_autocast(A)
        full = full and A.shape[-2] != A.shape[-1]
        U, S, Vh = run(svd_step(self._rule, full, self._said), A)
        k = S.shape[-1]
        source = Source(A, (U.detach()[..., :k], S.detach(), Vh.detach()[..., :k, :]))
        self._parts.put(S, Numbers(source))
        if U.shape[-1] == k:
            self._parts.put(U, Basis(source, "left"))
        if Vh.shape[-2] == k:
            self._parts.put(Vh, Basis(source, "right").moved(True, True))
        return U, S, Vh


def _checkpoints() -> int:
    """How many frames of the stack are those of torch.utils.checkpoint."""
    frame, found = sys._getframe(1), 0
    while frame is not None:
        found += frame.f_globals.get("__name__") == "torch.utils.checkpoint"
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _is_plain(A: Tensor) -> bool:
    """Whether ``A`` is a matrix, or many, as torch itself would take it."""
    if compiling():
        raise OptionError(
            "`drop_in`: a decomposition was met inside torch.compile, where products cannot be followed. Call the compiled "
            'function under torch.compiler.set_stance("force_eager"), or write our function into it: sg.inv_sqrtm(M).'
        )
    return type(A) in (Tensor, Parameter) and A.layout == torch.strided and not A.is_nested and A.ndim >= 2 and A.numel() > 0


def _cast_by_autocast(A: Tensor) -> Tensor:
    """What autocast does before a decomposition on the CPU."""
    half = A.dtype in (torch.float16, torch.bfloat16)
    return A.float() if half and A.device.type == "cpu" and torch.is_autocast_enabled("cpu") else A


# torch's functions, with its signatures.


def _eigh(mode: drop_in, A: Tensor, UPLO: str = "L", *, out: Any = None) -> Any:
    if out is not None or A.shape[-1] != A.shape[-2]:
        return NotImplemented
    return torch.return_types.linalg_eigh(mode._eigh(A, UPLO))  # type: ignore[attr-defined]


def _eigvalsh(mode: drop_in, A: Tensor, UPLO: str = "L", *, out: Any = None) -> Any:
    if out is not None or A.shape[-1] != A.shape[-2]:
        return NotImplemented
    return mode._eigh(A, UPLO)[0]


def _svd(mode: drop_in, A: Tensor, full_matrices: bool = True, *, driver: Any = None, out: Any = None) -> Any:
    if out is not None or driver is not None:
        return NotImplemented
    return torch.return_types.linalg_svd(mode._svd(A, full_matrices))  # type: ignore[attr-defined]


def _svdvals(mode: drop_in, A: Tensor, *, driver: Any = None, out: Any = None) -> Any:
    return NotImplemented if out is not None or driver is not None else mode._svd(A, False)[1]


def _old_svd(mode: drop_in, input: Tensor, some: bool = True, compute_uv: bool = True, *, out: Any = None) -> Any:
    if out is not None or not compute_uv:
        return NotImplemented
    U, S, Vh = mode._svd(input, not some)
    V = Vh.mH
    part = mode._parts.get(Vh)
    if isinstance(part, Basis):
        mode._parts.put(V, part.moved(True, True))
    return torch.return_types.svd((U, S, V))


def _matrix_norm(
    mode: drop_in,
    A: Tensor,
    ord: Any = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    if out is not None or ord not in ("nuc", 2, -2) or len(dim) != 2:
        return NotImplemented
    X = (A if dtype is None else A.to(dtype)).movedim(tuple(dim), (-2, -1))
    if ord == "nuc":
        X = _cast_by_autocast(X)
        norm = evaluate_number(nuclear_step(), X if X.shape[-2] >= X.shape[-1] else X.mH)
    else:
        S = mode._svd(X, False)[1]
        norm = S.amax(-1) if ord == 2 else S.amin(-1)
    if not keepdim:
        return norm
    first, last = sorted(d % A.ndim for d in dim)
    return norm.unsqueeze(first).unsqueeze(last)


def _norm(
    mode: drop_in, A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any = None
) -> Any:
    dim = (-2, -1) if dim is None and A.ndim == 2 else dim
    if ord is None or not isinstance(dim, (tuple, list)):
        return NotImplemented
    return _matrix_norm(mode, A, ord, dim, keepdim, dtype=dtype, out=out)


def _old_norm(
    mode: drop_in, input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None
) -> Any:
    return _norm(mode, input, p, dim, keepdim, dtype=dtype, out=out) if p == "nuc" else NotImplemented


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.linalg.eigh: _eigh,
    torch.linalg.eigvalsh: _eigvalsh,
    torch.linalg.svd: _svd,
    torch.linalg.svdvals: _svdvals,
    torch.svd: _old_svd,
    torch.Tensor.svd: _old_svd,
    torch.linalg.matrix_norm: _matrix_norm,
    torch.linalg.norm: _norm,
    torch.norm: _old_norm,
    torch.Tensor.norm: _old_norm,
}

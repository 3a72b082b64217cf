"""What `eigsh` and `svds` take: dense batches, sparse matrices and maps that are known by their products alone."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spectralgrad.context import checking, compiling, is_transformed, recording
from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.validation import as_matrix, is_whole, require_finite

from ..precision import matmul

__all__ = ["LinearMap"]

Kind = Literal["dense", "sparse", "implicit"]


class LinearMap:
    """A matrix that is known by its products with blocks of columns.

    ``matmul`` may close over tensors that require a gradient: they get one through one product more.

    Args:
        matmul: X (n, p) -> A X (m, p), by torch operations, for any p.
        shape: (m, n).
        rmatmul: Y (m, p) -> A^H Y (n, p), which `svds` needs; `eigsh`, whose A is Hermitian, does not.
        dtype: of the columns; None means torch's default.
        device: of the columns; None means torch's default.

    Raises:
        OptionError: a product that cannot be called, or a shape that is not two whole numbers.
        DtypeError: a dtype that cannot be decomposed.

    >>> import torch, spectralgrad as sg
    >>> d = torch.arange(1.0, 101.0, requires_grad=True)
    >>> A = sg.LinearMap(lambda X: d[:, None] * X, (100, 100))
    >>> w, V = sg.eigsh(A, k=2)
    >>> w.sum().backward()
    >>> d.grad[-3:].round(decimals=3).abs()
    tensor([0., 1., 1.])
    """

    def __init__(
        self,
        matmul: Callable[[Tensor], Tensor],
        shape: tuple[int, int],
        *,
        rmatmul: Callable[[Tensor], Tensor] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        for name, product in (("matmul", matmul), ("rmatmul", rmatmul)):
            if not (callable(product) or (name == "rmatmul" and product is None)):
                raise OptionError(f"`LinearMap`: {name} must be a function of a block of columns, got {product!r}.")
        if not (isinstance(shape, (tuple, list)) and len(shape) == 2 and all(is_whole(size, 0) for size in shape)):
            raise OptionError(f"`LinearMap`: shape must be two whole numbers (m, n), got {shape!r}. A map has no batch.")
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        if self.dtype not in (torch.float32, torch.float64, torch.complex64, torch.complex128):
            raise DtypeError(
                f"`LinearMap`: dtype must be float32, float64, complex64 or complex128, got {self.dtype}. Convert columns "
                "inside of matmul."
            )
        self.device = torch.get_default_device() if device is None else torch.device(device)
        self.shape = torch.Size(shape)
        self.matmul, self.rmatmul = matmul, rmatmul

    def __repr__(self) -> str:
        return f"LinearMap(shape={tuple(self.shape)}, dtype={self.dtype}, device={str(self.device)!r})"


@dataclass(frozen=True)
class Source(ABC):
    """One kind of matrix: how it multiplies, and how a cotangent of its entries is formed."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def leaf(self) -> Tensor | None:
        """The tensor that holds the entries, if there is one."""
        return None

    @abstractmethod
    def product(self, x: Tensor | None, X: Tensor) -> Tensor:
        """A X for the leaf x."""

    @abstractmethod
    def adjoint_product(self, x: Tensor | None, Y: Tensor) -> Tensor:
        """A^H Y."""

    def pulled(self, L: Tensor, R: Tensor) -> Tensor:
        """The cotangent L R^H of A as one of the leaf."""
        raise NotImplementedError


@dataclass(frozen=True)
class Dense(Source):
    """A tensor (*B, m, n)."""

    matrix: Tensor

    @property
    def leaf(self) -> Tensor:
        return self.matrix

    def product(self, x: Tensor | None, X: Tensor) -> Tensor:
        assert x is not None
        return matmul(x, X)

    def adjoint_product(self, x: Tensor | None, Y: Tensor) -> Tensor:
        assert x is not None
        return matmul(x.mH, Y)

    def pulled(self, L: Tensor, R: Tensor) -> Tensor:
        return matmul(L, R.mH)


@dataclass(frozen=True)
class Sparse(Source):
    """Values (e,), which are the leaf, and where they stand: the rows and columns of A, and of its transpose."""

    values: Tensor
    crow: Tensor
    row: Tensor
    column: Tensor

    @property
    def leaf(self) -> Tensor:
        return self.values

    def product(self, x: Tensor | None, X: Tensor) -> Tensor:
        assert x is not None
        return torch.sparse_csr_tensor(self.crow, self.column, x, self.shape, check_invariants=False) @ X

    def adjoint_product(self, x: Tensor | None, Y: Tensor) -> Tensor:
        assert x is not None
        A = torch.sparse_csc_tensor(self.crow, self.column, torch.conj_physical(x), self.shape[::-1], check_invariants=False)
        return A @ Y

    def pulled(self, L: Tensor, R: Tensor) -> Tensor:
        total = torch.zeros_like(self.values)
        for left, right in zip(L.unbind(-1), R.unbind(-1), strict=True):  # column by column: memory as of the entries
            total += left[self.row] * right[self.column].conj()
        return total


@dataclass(frozen=True)
class Implicit(Source):
    """A `LinearMap`, whose answers are looked at."""

    who: str
    map: LinearMap

    def product(self, x: Tensor | None, X: Tensor) -> Tensor:
        return self._called("matmul", self.map.matmul, X, self.shape[0])

    def adjoint_product(self, x: Tensor | None, Y: Tensor) -> Tensor:
        assert self.map.rmatmul is not None
        return self._called("rmatmul", self.map.rmatmul, Y, self.shape[1])

    def _called(self, name: str, f: Callable[[Tensor], Tensor], X: Tensor, rows: int) -> Tensor:
        Y = f(X)
        start = f"`{self.who}`: {name} of the LinearMap must return"
        if not isinstance(Y, Tensor) or Y.shape != (rows, X.shape[-1]):
            came = tuple(Y.shape) if isinstance(Y, Tensor) else type(Y).__name__
            raise ShapeError(f"{start} ({rows}, {X.shape[-1]}) for columns {tuple(X.shape)}, got {came}. See its shape=.")
        if Y.dtype != X.dtype:
            raise DtypeError(f"{start} {X.dtype}, got {Y.dtype}. Pass dtype= to LinearMap, or convert inside.")
        if checking(Y) and not bool(torch.isfinite(Y.detach()).all()):
            raise NonFiniteError(
                f"{start} finite numbers, got NaN or Inf. Look for the overflow inside; nothing was repaired."
            )
        return Y


def source_of(who: str, A: Tensor | LinearMap) -> Source:
    """What `A` is, in a dtype that can be decomposed; half precision becomes float32."""
    if isinstance(A, LinearMap):
        return Implicit(A.shape, A.dtype, A.device, who, A)
    if compiling() or recording():
        raise NotImplementedError(
            f"`{who}`: iterates until it has converged, which cannot be traced. Call it outside of torch.compile, or put "
            "torch.compiler.disable around it."
        )
    if not isinstance(A, Tensor) or A.layout == torch.strided:
        X = as_matrix(who, A, square=False, name="A")
        if checking(X) and not is_transformed(X):
            require_finite(who, X.detach(), "A")
        return Dense(X.shape, X.dtype, X.device, X)
    if A.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise DtypeError(
            f"`{who}`: `A` must be dense, sparse COO or CSR, got layout {A.layout}. Convert it with A.to_sparse_csr()."
        )
    if A.ndim != 2 or A.dense_dim():
        raise ShapeError(
            f"`{who}`: a sparse `A` must be a matrix of numbers (m, n), got {tuple(A.shape)}. Loop over a batch."
        )
    return _sparse(who, A)


def _sparse(who: str, A: Tensor) -> Source:
    if A.layout == torch.sparse_coo:
        A = A.coalesce()
        (row, column), values = A.indices(), A.values()
        crow = torch.zeros(A.shape[0] + 1, dtype=row.dtype, device=row.device)
        crow[1:] = torch.bincount(row, minlength=A.shape[0]).cumsum(0)
    else:
        crow, column, values = A.crow_indices(), A.col_indices(), A.values()
        row = torch.repeat_interleave(torch.arange(A.shape[0], device=A.device), crow.diff())
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    if not (values.is_floating_point() or values.is_complex()):
        raise DtypeError(f"`{who}`: `A` must be floating point or complex, got {values.dtype}. Convert it with A.double().")
    if checking(values):
        require_finite(who, values.detach(), "A")
    with warnings.catch_warnings():  # torch says once that its CSR layout is a beta
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(crow[:1], column[:0], values.detach()[:0], (0, 0), check_invariants=False)
    return Sparse(A.shape, values.dtype, A.device, values, crow, row, column)

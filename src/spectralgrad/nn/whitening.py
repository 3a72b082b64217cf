"""Whitening by a batch's statistics: what `DecorrelatedBatchNorm` and `functional.whiten` share."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from spectralgrad.context import compiling
from spectralgrad.errors import ShapeError
from spectralgrad.kernels import jacobi
from spectralgrad.kernels.whitening import Running
from spectralgrad.linalg.choices import (
    Gradient,
    RootSolver,
    for_whitening,
    knows_no_eigenvalues,
    solver_of_exact,
    takes_jacobi_kernel,
)
from spectralgrad.linalg.eigh import eigh
from spectralgrad.linalg.elementary import InverseSqrt, reciprocal_root
from spectralgrad.linalg.functions import apply_scalar, with_pullback
from spectralgrad.validation import asymmetry_tolerance, require_one_of

from .export import require_no_onnx
from .nodes import WhitenedStep
from .normalizer import BatchMap, Normalizer, require_groups
from .statistics import covariance_of, shifted

Kind = Literal["zca", "pca"]


class Whitening(Normalizer):
    """y = weight * W (x - mean) + bias, with W (C + eps I) W^T = I."""

    whitening: Kind
    running: Literal["covariance", "whitening"]
    gradient: Gradient | None
    warm_start: bool
    last_basis: Tensor | None  # eigenvectors (groups, d, d) of the last training step

    def whitening_matrix(self, covariance: Tensor) -> Tensor:
        """W (*B, d, d) for a covariance (*B, d, d) without eps.

        ZCA: (covariance + eps I)^(-1/2). PCA: L^(-1/2) V^T, largest eigenvalue first, each eigenvector with its largest
        entry positive. Eigenvalues that rounding left below eps count as eps.
        """
        return self._whitening(shifted(covariance, self.eps))

    def _whitening(self, C: Tensor) -> Tensor:
        """W for a covariance that was shifted."""
        if compiling():
            require_no_onnx(self.who, self.solver)
        if self.whitening == "zca":
            floor = None if knows_no_eigenvalues(self.solver) else self.eps
            return apply_scalar(self.who, C, InverseSqrt(floor), self.gradient, self.solver)
        w, V = eigh(C, gradient=self.gradient, solver=self.solver)  # type: ignore[arg-type]
        sign = V.detach().gather(-2, V.detach().abs().argmax(-2, keepdim=True)).sign()
        w = torch.where(w < self.eps, self.eps, w)
        return (V * sign * reciprocal_root(w).unsqueeze(-2)).mT.flip(-2)

    def from_batch(self, scatter: Tensor, samples: int | Tensor) -> BatchMap:
        covariance = covariance_of(scatter, samples)
        W = self._whitening(shifted(covariance, self.eps))
        running = covariance if self.running == "covariance" else W
        return BatchMap(W, covariance, {f"running_{self.running}": running})

    def from_batch_in_node(self, scatter: Tensor, samples: int) -> BatchMap:
        solver = solver_of_exact(self.gradient, self.solver) if self.whitening == "zca" else None
        if solver is None:
            return self.from_batch(scatter, samples)
        covariance = covariance_of(scatter.detach(), samples)
        C = shifted(covariance, self.eps)
        W, pullback, basis = with_pullback(
            self.who, C, InverseSqrt(self.eps), solver, asymmetry_tolerance(C), self._start(C.shape, C.device, C.dtype)
        )
        self._remember_basis(basis if jacobi.runs_on(C) else None)
        twice = 2 / max(samples, 1)  # a spectral function's derivative is symmetric
        running = covariance if self.running == "covariance" else W
        return BatchMap(W, covariance, {f"running_{self.running}": running}, lambda dW: pullback(dW).mul_(twice))

    # A training step as a whole in kernels.

    def is_kernel_step(self, input: Tensor) -> bool:
        return (
            self.whitening == "zca"
            and self.running == "covariance"
            and self.process_group is None
            and self.momentum is not None
            and takes_jacobi_kernel(self.gradient, self.solver)
            and all(x is None or is_plain(x, input.device) for x in (self.weight, self.bias))
        )

    def averages(self) -> Running | None:
        return None

    def starting_basis(self, input: Tensor) -> Tensor | None:
        if not self.warm_start:
            return None
        return self._start((self.groups, self.group_size, self.group_size), input.device, torch.float32)

    def remember_step(self, step: WhitenedStep) -> None:
        self._remember_basis(step.kept.of_groups("V") if self.warm_start else None)

    def _remember_basis(self, V: Tensor | None) -> None:
        """Keep these eigenvectors, in the memory of the last ones: a CUDA graph of the step reads there what it wrote."""
        if not self.warm_start or V is None:
            self.last_basis = None
            return
        kept = self._start(V.shape, V.device, V.dtype)
        self.last_basis = V.clone() if kept is None or kept.is_inference() else kept.copy_(V)

    def _start(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The eigenvectors of the last step, if they fit."""
        V = self.last_basis
        fits = self.warm_start and V is not None and (V.shape, V.device, V.dtype) == (shape, device, dtype)
        return V if fits else None


class Stateless(Whitening):
    """Whitening by the statistics of each batch alone."""

    who = "whiten"
    argument = "x"
    training, process_group, running_mean = True, None, None
    running: Literal["covariance"] = "covariance"
    momentum, warm_start, last_basis = 0.0, False, None

    def __init__(
        self,
        num_features: int,
        group_size: int | None,
        eps: float,
        whitening: Kind,
        gradient: Gradient | None,
        solver: RootSolver,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> None:
        require_groups(self.who, num_features, group_size, eps)
        require_one_of(self.who, "whitening", whitening, ("zca", "pca"))
        self.num_features = num_features
        self.group_size = num_features if group_size is None else group_size
        self.eps = eps
        self.whitening = whitening
        self.gradient = for_whitening(self.who, whitening, gradient, solver)
        self.solver = solver
        self.weight, self.bias = weight, bias

    def require_samples(self, input: Tensor, samples: int) -> None:
        if samples == 1:
            raise ShapeError(
                f"`{self.who}`: expected more than 1 value per channel, got `x` of shape {tuple(input.shape)}. "
                "Pass a larger batch."
            )


def is_plain(x: Tensor, device: torch.device) -> bool:
    """Whether a kernel can read ``x`` as float32 numbers."""
    return x.dtype == torch.float32 and x.device == device and type(x) in (Tensor, Parameter) and x.is_contiguous()

"""What the ways of an input (route.py) ask of whoever normalises by a batch's statistics: a layer, or a function."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import may_look
from spectralgrad.errors import NonFiniteError, OptionError, ShapeError
from spectralgrad.kernels.whitening import Running
from spectralgrad.linalg.choices import RootSolver
from spectralgrad.validation import is_number, is_whole, overflow_advice, require_finite, require_real

from .nodes import WhitenedStep


class BatchMap(NamedTuple):
    """What a layer makes of a batch's scatter.

    Args:
        A: the map, (groups, d, d), or its diagonal (groups, d).
        covariance: (groups, d, d), to be monitored.
        running: new values for the running buffers, by name.
        pullback: dA -> dS + dS^T, where that is known without a graph; None leaves it to autograd.
    """

    A: Tensor
    covariance: Tensor
    running: dict[str, Tensor]
    pullback: Callable[[Tensor], Tensor] | None = None


class Normalizer:
    """y = weight * A (x - mean) + bias, with A and mean from statistics.

    A subclass says how: `from_batch`, and `from_running` if it has running statistics. No attribute has a default here: it
    would hide a module's buffer or parameter of that name.
    """

    num_features: int
    group_size: int
    eps: float
    momentum: float | None
    training: bool
    process_group: Any
    running_mean: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    solver: RootSolver

    who: ClassVar[str]  # its name in the errors: that of the class, unless the class says otherwise
    argument = "input"  # and its argument's

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "who" not in vars(cls):
            cls.who = cls.__name__

    @property
    def groups(self) -> int:
        return self.num_features // self.group_size

    # What a subclass gives.

    @abstractmethod
    def from_batch(self, scatter: Tensor, samples: int | Tensor) -> BatchMap:
        """The map from the scatter (groups, d, d) of ``samples`` samples, by operations that autograd can follow.

        From the scatter alone: the routes give a gradient to nothing else.
        """

    def from_batch_in_node(self, scatter: Tensor, samples: int) -> BatchMap:
        """`from_batch` inside an autograd node: with a pullback, where the layer knows one."""
        return self.from_batch(scatter, samples)

    def from_running(self, dtype: torch.dtype) -> Tensor:
        """A from the running buffers, at least in ``dtype``."""
        raise NotImplementedError

    # What a subclass gives whose training step kernels/whitening.py can do as a whole.

    def is_kernel_step(self, input: Tensor) -> bool:
        """Whether that is all that the options and the state of this layer ask for."""
        return False

    def averages(self) -> Running | None:
        """The running values, where a step updates them."""
        raise NotImplementedError

    def starting_basis(self, input: Tensor) -> Tensor | None:
        """A guess of the eigenvectors (groups, d, d)."""
        raise NotImplementedError

    def remember_step(self, step: WhitenedStep) -> None:
        """`remember` after such a step, which has moved the running values already."""
        raise NotImplementedError

    # What the routes ask for.

    @property
    def updates_running(self) -> bool:
        """Whether a pass by the batch's statistics moves the running ones."""
        return False

    def require_samples(self, input: Tensor, samples: int) -> None:
        """Raise for a batch with only one value per channel."""
        if samples == 1:
            raise ShapeError(
                f"`{self.who}`: expected more than 1 value per channel when training, got input of shape "
                f"{tuple(input.shape)}. Pass a larger batch, or call eval()."
            )

    def require_batch(self, input: Tensor, samples: int | Tensor, scatter: Tensor, broken: Tensor | None = None) -> None:
        """`require_samples`, and raise for statistics that are not finite, both where looking is allowed.

        ``broken``: which ranks (world,) brought NaN or Inf; None without ranks.
        """
        if not isinstance(samples, Tensor):
            self.require_samples(input, samples)
        looks = may_look(scatter)
        if looks and isinstance(samples, Tensor):
            self.require_samples(input, int(samples))
        if not looks or bool(torch.isfinite(scatter).all()):
            return
        who = self.who
        require_finite(who, input, self.argument)
        if broken is not None and bool(broken.any()):
            raise NonFiniteError(
                f"`{who}`: `{self.argument}` must be finite on every rank, but rank {broken.nonzero()[:, 0].tolist()} of "
                "process_group came with NaN or Inf. Look for the overflow there; nothing was repaired."
            )
        largest = float(input.detach().abs().max())
        raise NonFiniteError(
            f"`{who}`: the covariance of `{self.argument}` overflows {scatter.dtype}: entries reach {largest:.2e}. "
            f"{overflow_advice('Scale the input down', scatter.dtype)}"
        )

    def remember(self, samples: int | Tensor, mean: Tensor, found: BatchMap) -> None:
        """Keep what a batch left; here, nothing."""


def require_groups(who: str, num_features: int, group_size: int | None, eps: float) -> None:
    """Raise unless channels come in groups of this size, whose covariances can be shifted by ``eps``."""
    if not (is_number(eps) and eps > 0):
        raise OptionError(f"`{who}`: eps must be a finite number > 0, got {eps!r}. For next to none take 1e-12.")
    if group_size is not None and (not is_whole(group_size) or num_features % group_size):
        raise OptionError(
            f"`{who}`: group_size must be a whole number that divides num_features={num_features}, got {group_size!r}. "
            "None makes one group of all channels."
        )


def require_features(who: str, x: Tensor, name: str, ndims: tuple[int, ...], num_features: int | None = None) -> None:
    """Raise unless ``x`` is a dense real tensor (N, C, *) with so many dimensions and channels; None is any number."""
    require_real(who, x, name)
    if x.ndim not in ndims:
        wanted = " or ".join(f"{ndim}D" for ndim in ndims)
        raise ShapeError(f"`{who}`: `{name}` must be {wanted}, (N, C, *), got shape {tuple(x.shape)}.")
    if x.shape[1] == 0:
        raise ShapeError(f"`{who}`: `{name}` must have at least one channel in dimension 1, got shape {tuple(x.shape)}.")
    if num_features is not None and x.shape[1] != num_features:
        raise ShapeError(
            f"`{who}`: `{name}` must have {num_features} channels in dimension 1, as num_features says, got shape "
            f"{tuple(x.shape)}."
        )

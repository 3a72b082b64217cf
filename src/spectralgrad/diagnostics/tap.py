"""One layer under watch: its covariance, and the norms of the gradients on both sides of it.

A layer that can be watched has `monitored`, and while that is True leaves the covariance of a training pass, before eps,
in `last_covariance`. Gradient norms come from two hooks on the graph: one on the layer's output, and one on an alias of its
input, so that what other branches send back to that input is not counted. Neither changes a value.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from spectralgrad.context import compiling, is_transformed
from spectralgrad.linalg.precision import widest
from spectralgrad.nn.pooling import CovariancePool2d


class Tap:
    """A layer's flag, and the norms (), on its device, of the gradients of this step.

    A copied or pickled model takes along a tap without a layer, which does nothing.
    """

    def __init__(self, name: str = "", layer: Any = None) -> None:
        self.name = name
        self.layer = layer
        self.recording = False
        self.samples: int | None = None  # of the covariance, in the last training pass that was seen
        self.before: list[Tensor] = []  # with respect to the output
        self.after: list[Tensor] = []  # with respect to the input
        if layer is not None:
            self.found = (layer.monitored, layer.last_covariance)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tap":
        return Tap()

    def __reduce__(self) -> tuple[Any, ...]:
        return Tap, ()

    def arm(self, recording: bool) -> None:
        """Get ready for the next step."""
        self.recording = recording
        self.before, self.after = [], []  # new ones: a backward pass that comes too late writes into the old
        self.layer.monitored = recording or self.found[0]
        if not self.found[0]:
            self.layer.last_covariance = None  # frees it
        self.seen = self.layer.last_covariance

    def fresh(self, samples: int | None) -> Tensor | None:
        """The covariances (groups or images, d, d) of this step, if there are any."""
        C = self.layer.last_covariance
        if not isinstance(C, Tensor) or C is self.seen or is_transformed(C) or C.numel() == 0:
            return None
        return C[:samples] if isinstance(self.layer, CovariancePool2d) else C

    def gradient_norms(self) -> tuple[Tensor | None, Tensor | None]:
        """Of all gradients of this step together: with respect to the output, and to the input."""
        return _total(self.before), _total(self.after)

    def restore(self) -> None:
        """Leave the layer as it was found."""
        self.recording = False
        self.layer.monitored = self.found[0]
        if not self.found[0]:
            self.layer.last_covariance = self.found[1]

    def enter(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward pre-hook: the layer gets aliases of its inputs."""
        if compiling() or not self._watches(module):
            return None
        self._count((*args, *kwargs.values()))
        alias = [self._alias(x) for x in (*args, *kwargs.values())]
        return tuple(alias[: len(args)]), dict(zip(kwargs, alias[len(args) :], strict=True))

    def leave(self, module: Module, args: Any, output: Any) -> None:
        """The forward hook."""
        if compiling() or not self._watches(module):
            return
        for y in output if isinstance(output, (tuple, list)) else (output,):
            if _has_gradient(y):
                _listen(y, self.before)

    def _watches(self, module: Module) -> bool:
        return self.recording and module is self.layer and module.training and torch.is_grad_enabled()

    def _count(self, inputs: tuple[Any, ...]) -> None:
        """How many samples the covariance is of: positions of an image (`CovariancePool2d`), else those of the batch."""
        x = next((x for x in inputs if isinstance(x, Tensor) and x.ndim >= 2), None)
        if x is not None and isinstance(self.layer, CovariancePool2d):
            self.samples = x.shape[1] if x.ndim == 3 else x[0, 0].numel() if len(x) else None
        elif x is not None:
            self.samples = x.numel() // x.shape[1] if x.shape[1] else None

    def _alias(self, x: Any) -> Any:
        if not _has_gradient(x):
            return x
        alias = x.view_as(x)
        _listen(alias, self.after)
        return alias


def _has_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad and not is_transformed(x)


def _listen(x: Tensor, sink: list[Tensor]) -> None:
    # The norm and not the gradient is kept: a gradient is as large as the activation. In float64, where no square overflows.
    x.register_hook(lambda g: sink.append(torch.linalg.vector_norm(g.detach(), dtype=widest(g.real))))


def _total(norms: list[Tensor]) -> Tensor | None:
    """The norm of all gradients of a step together, several if the layer ran several times."""
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else None

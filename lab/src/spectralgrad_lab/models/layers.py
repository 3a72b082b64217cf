"""The papers' names for layers and gradients, as our objects: what a trial says, turned into what is trained.

«SVD» in NIPS19 and PAMI is the bare analytic gradient; clipping is at 100; SVD-PI and PI take 19 iterations, SVD-Taylor
degree 9, Newton-Schulz 5 steps, where a trial does not say otherwise.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor
from torch.nn import BatchNorm2d, Module

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad.nn import CovariancePool2d, DecorrelatedBatchNorm2d, PCADenoise2d

from .resnet import Norm

LAYERS = ("bn", "zca", "pca", "denoise", "gcp")
CLIP = 100.0
STEPS = {"taylor": 9, "svd-pi": 19, "pi": 19, "newton": 5}  # iterations where a trial gives none
GRADIENTS: dict[str, Callable[[int], sg.Rule | sg.PowerIteration]] = {
    "svd": lambda _: sg.Analytic(),
    "clip": lambda _: sg.Clip(CLIP),
    "taylor": sg.Taylor,
    "svd-pi": sg.PowerIteration,
    "exact": lambda _: sg.Exact(),
    "lorentzian": lambda _: sg.Lorentzian(),
}
SOLVERS: dict[str, Callable[[int], sg.PowerDeflation | sg.NewtonSchulz]] = {
    "pi": sg.PowerDeflation,
    "newton": lambda steps: sg.NewtonSchulz(steps=steps),
}
METHODS = (*GRADIENTS, *SOLVERS)


class LayerOptions(Protocol):
    """What a layer and a network are made from; `records.trial.Trial` has all of it."""

    @property
    def model(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def layer(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def d(self) -> int | None: ...
    @property
    def where(self) -> str: ...
    @property
    def eps(self) -> float: ...
    @property
    def iterations(self) -> int | None: ...
    @property
    def energy(self) -> float | None: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def running(self) -> str: ...
    @property
    def deflation(self) -> str: ...
    @property
    def through(self) -> str: ...
    @property
    def first_stride(self) -> int | None: ...


def differentiation(options: LayerOptions) -> dict[str, Any]:
    """The ``gradient=`` or ``solver=`` of a layer, by the method's name.

    Raises:
        OptionError: an unknown method, or iterations for one that has none.
    """
    method = options.method
    if options.iterations is not None and method not in STEPS:
        raise OptionError(
            f"`Trial`: iterations are those of {', '.join(STEPS)}; {method} has none, got {options.iterations!r}. "
            "Leave them out."
        )
    steps = STEPS.get(method, 0) if options.iterations is None else options.iterations
    if method == "svd-pi":
        return {"gradient": _svd_pi(options, steps)}
    return {"gradient": GRADIENTS[method](steps)} if method in GRADIENTS else {"solver": SOLVERS[method](steps)}


def _svd_pi(options: LayerOptions, steps: int) -> sg.PowerIteration:
    """NIPS19's Alg. 1. It breaks at eigenvalues of the shifted covariance that are not above the shift.

    Denoising shifts variances and not the matrix that it decomposes: there the break is at 0. Pooling has it as printed
    alone: with two-sided deflation, which is ours, it keeps every eigenvector.
    """
    deflation = cast(Literal["two-sided", "printed"], options.deflation)
    breaks = options.layer in ("zca", "pca") or (options.layer == "gcp" and deflation == "printed")
    least = options.eps if breaks else 0.0
    if deflation == "printed":
        return sg.PowerIteration.printed(steps, least)
    return sg.PowerIteration(steps, min_eigenvalue=least, deflation=deflation)


def norm_of(options: LayerOptions) -> Norm:
    """Makes the normalisation that a trial puts in the place of batch norm, from the number of channels.

    Args:
        options: a trial.

    Raises:
        OptionError: a layer, a method or an option that does not exist, or that does not go with the others. Group sizes
            that do not divide the channels are refused when the layer is made.

    >>> from types import SimpleNamespace
    >>> plain = dict(d=4, eps=1e-4, iterations=3, energy=None, rank=None, running="covariance")
    >>> plain |= dict(deflation="two-sided", through="projector")
    >>> norm_of(SimpleNamespace(layer="zca", method="taylor", **plain))(8).gradient
    Taylor(degree=3)
    """
    layer = options.layer
    require_options(options)
    if layer in ("bn", "gcp"):
        return lambda channels: watched(BatchNorm2d(channels), options.d) if layer == "bn" else BatchNorm2d(channels)
    how = differentiation(options)
    if layer == "denoise":
        how |= {"energy": options.energy, "rank": options.rank, "through": options.through, "running": options.running}
        return lambda channels: PCADenoise2d(channels, eps=options.eps, **how)
    whitening = cast(Literal["zca", "pca"], layer)
    running = cast(Literal["covariance", "whitening"], options.running)
    return lambda channels: DecorrelatedBatchNorm2d(
        channels, options.d, eps=options.eps, whitening=whitening, running=running, **how
    )


def pool_of(options: LayerOptions, channels: int, normalize: Literal["frobenius"] | None) -> CovariancePool2d:
    """The covariance pooling of a trial, over maps of ``channels`` channels; after the reduction there are ``d``, or 256."""
    require_options(options)
    reduced = 256 if options.d is None else options.d
    return CovariancePool2d(channels, reduced=reduced, normalize=normalize, eps=options.eps, **differentiation(options))


def require_options(options: LayerOptions) -> None:
    """Raise for what does not exist, or would be dropped without a word."""
    layer, method = options.layer, options.method
    if layer not in LAYERS:
        raise OptionError(f"`Trial`: layer must be one of {', '.join(LAYERS)}, got {layer!r}.")
    if method not in (*METHODS, *(("bn",) if layer == "bn" else ())):
        raise OptionError(f"`Trial`: method must be one of {', '.join(METHODS)}, got {method!r}.")
    if layer != "denoise" and not (options.energy is None and options.rank is None):
        raise OptionError(f"`Trial`: energy and rank belong to layer denoise, got layer {layer}. Leave them out.")
    if options.deflation != "two-sided" and (layer == "bn" or method != "svd-pi"):
        raise OptionError(
            f"`Trial`: deflation is that of svd-pi, got {options.deflation!r} for {method}. Leave it out: "
            "pi always deflates as printed."
        )
    if options.running != "covariance" and layer in ("bn", "gcp"):
        raise OptionError(
            f"`Trial`: running belongs to zca, pca and denoise, got {options.running!r} for layer {layer}. Leave it out."
        )
    if options.through != "projector" and layer != "denoise":
        raise OptionError(f"`Trial`: through belongs to layer denoise, got {options.through!r} for {layer}. Leave it out.")
    if layer == "bn":
        if method not in ("exact", "bn") or options.iterations is not None:
            raise OptionError(
                f"`Trial`: batch norm has nothing to differentiate by {method!r}. Leave method out, or take another layer."
            )
        return
    if layer == "denoise" and options.d is not None:
        raise OptionError(f"`Trial`: layer denoise acts on all channels together, got d={options.d}. Leave d out.")
    if layer in ("denoise", "pca") and method == "newton":
        raise OptionError(f"`Trial`: newton has no eigenvectors, and layer {layer} needs them. Take another method.")


def watched(norm: BatchNorm2d, d: int | None) -> BatchNorm2d:
    """The batch norm, with what `ConditionMonitor` looks for: the covariance of its input in groups of ``d`` channels.

    Nothing that it computes changes. A converter (`convert_batchnorm`) drops the watch with the layer.
    """
    size = norm.num_features if d is None else d
    if size < 1 or norm.num_features % size:
        raise OptionError(f"`Trial`: d must divide the {norm.num_features} channels, got {d!r}.")

    def look(module: Module, inputs: tuple[Tensor, ...]) -> None:
        if module.training and module.monitored:
            x = inputs[0].detach()
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            groups = wide.transpose(0, 1).reshape(norm.num_features // size, size, -1)  # (groups, d, samples)
            with sg.checks(False):  # who watches does not stop a training
                module.last_covariance = sg.covariance(groups)

    norm.monitored, norm.last_covariance = False, None  # type: ignore[assignment]
    norm.register_forward_pre_hook(look)
    return norm

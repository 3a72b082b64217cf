"""Covariance pooling, whitening, whitening and colouring, colour transfer: the layers without their state."""

import torch
from torch import Tensor

from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.linalg.choices import AUTO, Gradient, RootSolver
from spectralgrad.validation import (
    REAL,
    require_dense,
    require_flag,
    require_number,
    require_part,
)

from .base import require_features
from .coloring import Coloring, Per, recolored, rounded
from .decorrelation import Kind, Stateless
from .inputs import color_samples, require_pooled
from .pooling import Normalize, Output, Pooling
from .route import route_of

__all__ = ["color_transfer", "covariance_pool", "whiten", "whiten_color"]


def covariance_pool(
    x: Tensor,
    *,
    eps: float = 0.0,
    power: float = 0.5,
    normalize: Normalize | None = None,
    output: Output = "triangle",
    isometric: bool = False,
    gradient: Gradient | None = None,
    solver: RootSolver = AUTO,
) -> Tensor:
    """The covariance of the channels over the positions of each map, raised to a power (PAMI Alg. 3, ECCV22 eq. 44).

    With X the centred map, C channels by n = H W positions, or C features by n = T tokens,

        S = (X X^T / n + eps I)^power,          and with normalize="frobenius" S / |S|_F,

    which is PAMI eq. 29, l_i^power / (sum_k l_k^(2 power))^(1/2), on the eigenvalues l; S = 0 stays 0.

    Args:
        x: maps (*B, C, H, W), or with three dimensions tokens (N, T, C), as transformers have them; a single map is
            (1, C, H, W). Real; bf16 and fp16 are computed in float32.
        eps: a shift of the diagonal. Not needed: singular covariances are the normal case.
        power: the exponent, above 0.
        normalize: "frobenius" or None.
        output: "triangle", the upper one row by row: S_11, S_12, ..., S_1C, S_22, ...; "matrix"; or "features", S X.
        isometric: off-diagonal entries of the triangle times 2^(1/2), so that its norm is |S|_F.
        gradient: a rule; None or `Exact()` for the exact gradient. Other rules go through eigenvectors as the papers do.
        solver: an eigensolver; with power 1/2 also `NewtonSchulz`, which `Auto()` is on GPUs with fast float64.

    Returns:
        (*B, C (C + 1) / 2), (*B, C, C) or the shape of ``x``, in the dtype of ``x``.

    Raises:
        OptionError: an option out of its range, or one that does not go with another.
        ShapeError, DtypeError, NonFiniteError: x is no batch of maps or tokens, has no position, is not real, or not finite.

    >>> import torch, spectralgrad as sg
    >>> x = torch.tensor([[3.0, -3.0], [4.0, -4.0]]).reshape(1, 2, 1, 2)  # rank 1: |(3, 4)| = 5
    >>> sg.nn.functional.covariance_pool(x, output="matrix")
    tensor([[[1.8000, 2.4000],
             [2.4000, 3.2000]]])
    >>> sg.nn.functional.covariance_pool(x, normalize="frobenius")
    tensor([[0.3600, 0.4800, 0.6400]])
    >>> sg.nn.functional.covariance_pool(torch.randn(4, 50, 192)).shape  # 4 samples of 50 tokens
    torch.Size([4, 18528])
    """
    who = "covariance_pool"
    pooling = Pooling(eps, power, normalize, output, isometric, gradient, solver)
    pooling.require(who)
    looked, are_tokens = require_pooled(who, x, "x", any_batch=True), x.ndim == 3
    return pooling.of(x.mT.unsqueeze(-1) if are_tokens else x, are_tokens, looked)


def whiten(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    group_size: int | None = None,
    eps: float = 1e-4,
    whitening: Kind = "zca",
    gradient: Gradient | None = None,
    solver: RootSolver = AUTO,
) -> Tensor:
    """Whitening by the statistics of the batch: `DecorrelatedBatchNorm` in training, without its state.

    In each group of channels, with mean m and covariance C over batch and positions,

        y = weight * W (x - m) + bias,   W = (C + eps I)^(-1/2) (ZCA)   or   L^(-1/2) V^T with C + eps I = V L V^T (PCA).

    Args:
        x: (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W), real; bf16 and fp16 are computed in float32.
        weight, bias: (C,), one number for each channel, as in torch.nn.functional.batch_norm; None for none.
        group_size: whiten groups of this many neighbouring channels; None is all channels. Must divide C.
        eps: the shift of the covariance's diagonal; eigenvalues of C + eps I below it count as it.
        whitening: "zca" or "pca".
        gradient: a rule; None is `Exact()` for ZCA, `Lorentzian()` for PCA, and the solver's own where it brings one.
        solver: an eigensolver, `PowerDeflation`, or for ZCA `NewtonSchulz`.

    Returns:
        The shape and dtype of ``x``.

    Raises:
        OptionError: an option out of its range.
        ShapeError, DtypeError: x, weight or bias of the wrong shape or kind, or one value per channel.
        NonFiniteError: NaN or Inf in x.
        DefinitenessError: from `NewtonSchulz` alone, where it does not converge.

    >>> import torch, spectralgrad as sg
    >>> mix = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
    >>> y = sg.nn.functional.whiten(torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) @ mix)
    >>> bool(((y.mT @ y / 64 - torch.eye(3)).abs() < 1e-2).all())
    True
    """
    who = "whiten"
    require_features(who, x, "x", (2, 3, 4, 5))
    for name, value in (("weight", weight), ("bias", bias)):
        _require_vector(who, name, value, x.shape[1])
    stateless = Stateless(x.shape[1], group_size, eps, whitening, gradient, solver, weight, bias)
    return route_of(stateless, x).normalize(stateless, x)


def whiten_color(
    content: Tensor,
    style: Tensor,
    *,
    group_size: int | None = None,
    eps: float = 1e-5,
    alpha: float = 1.0,
    per: Per = "sample",
    gradient: Gradient | None = None,
    solver: RootSolver = AUTO,
) -> Tensor:
    """Content with the mean and covariance of a style, by whitening and colouring (PAMI 5.3.1, eq. 30-33).

    In each group of channels, with mean m and covariance C of content and style,

        y = C_s^(1/2) (C_c + eps I)^(-1/2) (x - m_c) + m_s,     and the result is (1 - alpha) x + alpha y.

    Where C_c is far above eps the covariance of y is C_s; directions that the content does not have get nothing.

    Args:
        content: (N, C, H, W), real.
        style: (N or 1, C, H', W') if per="sample"; any number of samples if per="batch".
        group_size: whiten and colour groups of this many neighbouring channels; None is all channels. Must divide C.
        eps: the shift of the content's covariance; with 0 a singular one is an error.
        alpha: how much of the style, from 0, the content unchanged, to 1.
        per: statistics of each "sample", or of the whole "batch" (PAMI: over B H W).
        gradient: a rule; None or `Exact()` for the exact gradient.
        solver: an eigensolver, or `NewtonSchulz`.

    Returns:
        The shape and dtype of ``content``.

    Raises:
        OptionError: an option out of its range.
        ShapeError, DtypeError, NonFiniteError: content or style is no batch of maps, or they do not match.
        DeviceError: both on two devices.
        DefinitenessError: eps = 0 and the content's covariance is singular.

    >>> import torch, spectralgrad as sg
    >>> content, style = torch.tensor([[[[0.0, 2.0]]]]), torch.tensor([[[[3.0], [5.0], [7.0]]]])
    >>> sg.nn.functional.whiten_color(content, style).mean()  # the style's
    tensor(5.)
    """
    return recolored(content, style, Coloring(group_size, eps, alpha, per, gradient, solver))


def color_transfer(
    image: Tensor, reference: Tensor, *, strength: float = 1.0, clip: bool = True, eps: float = 1e-7
) -> Tensor:
    """An image in the colours of another: `whiten_color` on pixels (PAMI fig. 2 d).

    Mean and covariance of the colours become the reference's, then values are cut to the range of colours. A constant
    image takes the reference's mean; a constant reference makes the image constant.

    Args:
        image: (3, H, W) or (N, 3, H, W), or with 1 channel; floating point in [0, 1], or uint8.
        reference: the same number of channels; of any size; one, or one for each image. May differ in dtype.
        strength: from 0, the image unchanged, to 1.
        clip: cut to [0, 1]; False leaves what lies outside. uint8 has no outside.
        eps: the shift of the image's covariance; the default is a thirteenth of what rounding to 8 bits causes.

    Returns:
        The shape and dtype of ``image``.

    Raises:
        OptionError: an option out of its range.
        ShapeError, DtypeError, NonFiniteError: no images, not finite, or not in [0, 1].
        DeviceError: both on two devices.

    >>> import torch, spectralgrad as sg
    >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).reshape(3, 1, 1)
    >>> sg.nn.functional.color_transfer(torch.full((3, 2, 2), 0.5), red)[:, 0, 0]
    tensor([1., 0., 0.])
    """
    who = "color_transfer"
    require_part(who, "strength", strength)
    require_flag(who, "clip", clip)
    require_number(who, "eps", eps, least=0)
    X, Y = color_samples(who, image, "image", clip), color_samples(who, reference, "reference", clip)
    if image.dtype == torch.uint8 and not clip:
        raise OptionError(f"`{who}`: clip=False needs a floating-point image, got torch.uint8. Pass image / 255.")
    coloring = Coloring(None, eps, strength, "sample", None, AUTO)
    colors = coloring.of(who, X, Y, ("image", "reference")).reshape_as(image)
    colors = colors.clamp(0, 1) if clip else colors
    return (colors * 255).round().to(torch.uint8) if image.dtype == torch.uint8 else rounded(who, colors, image.dtype)


def _require_vector(who: str, name: str, value: Tensor | None, channels: int) -> None:
    """Raise unless ``value`` is None or real numbers (channels,)."""
    if value is None:
        return
    if not isinstance(value, Tensor) or value.dtype not in REAL:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise DtypeError(f"`{who}`: `{name}` must be a real floating-point tensor or None, got {came}.")
    require_dense(who, value, name)
    if value.shape != (channels,):
        raise ShapeError(
            f"`{who}`: `{name}` must have shape ({channels},), one number for each channel, got {tuple(value.shape)}."
        )

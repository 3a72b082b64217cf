"""Alignment: the nearest rotation of a matrix, and the motion between clouds.

With A = U S V^T and sigma = S, the last with the sign of det(U V^T), R maximises <R, A> over rotations, at sum sigma. So a
rotation that reaches it is right, unique or not. The gradient divides by sigma_i + sigma_j; pairs that are zero to rounding
give 0, and near that border the reference keeps silent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .examine import Check, Outcome
from .numbers import LIMIT, cotangent, eps, largest, norm, ratio, smallest_normal, unit, wide
from .targets import Target, orthogonality

_ZERO = 2  # times n eps s_1: a sum of singular values no larger is zero, and its pair gets no gradient
_NOISE = 8  # times more for clouds, whose points carry the rounding of their coordinates
_CLEAR = 8  # times below or above that border, it is certain on which side a sum lies
_COINCIDE = 4  # times eps times the distance of the mean from 0: points no further from it are one
_MODERATE = {torch.float32: 60, torch.float64: 150}  # |log2| of scales whose products neither over- nor underflow
_TWICE = {True: 232, False: 481}  # |log2| of 1e70 and 1e145: with and without a scale
_ROUNDING = 1e3  # times eps: of a gradient, relative to the sizes it is made of


def moderate(*parts: Tensor) -> Tensor:
    """Whether (B,) all parts are of scales at which nothing over- or underflows."""
    exponents = torch.stack([unit(part)[1] for part in parts])
    return (exponents.abs() <= _MODERATE[parts[0].real.dtype]).all(0)


def special(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R, sigma and V of A (B, d, d)."""
    U, S, Vh = torch.linalg.svd(A)
    sign = torch.linalg.det(U @ Vh).sign().unsqueeze(-1)
    sigma = torch.cat([S[:, :-1], S[:, -1:] * sign], -1)
    U = torch.cat([U[..., :-1], U[..., -1:] * sign.unsqueeze(-1)], -1)
    return U @ Vh, sigma, Vh.mT


def as_found(A: Tensor, R: Tensor, border: float) -> tuple[Tensor, Tensor, Tensor]:
    """`special`; where the rotation is not unique by the one that was found: A = R H, H = V diag(sigma) V^T."""
    best, sigma, V = special(A)
    H = R.mT @ A
    w, W = torch.linalg.eigh((H + H.mT) / 2)
    w, W = w.flip(-1), W.flip(-1)
    free = (
        (sigma[:, -2:].sum(-1) <= _CLEAR * border * sigma[:, 0])
        if A.shape[-1] > 1
        else torch.zeros(len(A), dtype=torch.bool)
    )
    return (
        torch.where(free[:, None, None], R, best),
        torch.where(free[:, None], w, sigma),
        torch.where(free[:, None, None], W, V),
    )


def inverse_sums(sigma: Tensor, border: float) -> tuple[Tensor, Tensor]:
    """1/(sigma_i + sigma_j) off the diagonal, 0 below ``border`` times s_1; and whether (B,) a sum is near the border."""
    total = (sigma.unsqueeze(-1) + sigma.unsqueeze(-2)) / sigma[:, :1, None].clamp(min=1e-300)
    off = ~torch.eye(sigma.shape[-1], dtype=torch.bool)
    zero = total <= border
    doubt = (total > border / _CLEAR) & (total < border * _CLEAR) & off
    E = torch.where(zero | ~off, 0, 1 / torch.where(zero, 1, total)) / sigma[:, :1, None].clamp(min=1e-300)
    return E, doubt.flatten(1).any(1)


def pullback(R: Tensor, V: Tensor, E: Tensor, G: Tensor) -> Tensor:
    """R V (E * V^T (R^T G - G^T R) V) V^T: the gradient for A of <G, R>."""
    inner = V.mT @ (R.mT @ G - G.mT @ R) @ V
    return R @ V @ (E * inner) @ V.mT


def is_rotation(R: Tensor) -> Check:
    check = orthogonality("rotation", R)
    turned = torch.linalg.det(wide(R)) > 0
    return Check("rotation", torch.where(turned, check.ratio, torch.inf), R)


@dataclass(frozen=True)
class Procrustes(Target):
    """The nearest rotation of a square matrix."""

    kinds: tuple[str, ...] = ("square",)

    def takes(self, X: Tensor) -> bool:
        return X.shape[-1] == X.shape[-2]

    def code(self, options: dict[str, Any]) -> str:
        return "Y = sg.procrustes(X, special=True)"

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        A, exponent = unit(X)
        (R,), n, ulp = outcome.outputs, X.shape[-1], eps(X.dtype)
        Q, sigma, V = as_found(A, wide(R), _ZERO * n * ulp)
        yield is_rotation(R)
        bound = LIMIT * n * ulp * sigma[:, 0].abs() * n
        yield Check("nearest", ratio((special(A)[1].sum(-1) - (wide(R) * A).sum((-2, -1))).clamp(min=0), bound), R)
        E, doubt = inverse_sums(sigma, _ZERO * n * ulp)
        G = wide(cotangent(R, 0))
        expected, scale = pullback(Q, V, E, G), torch.exp2(-exponent.double())
        steepest = E.flatten(1).amax(1)
        fits = moderate(X) & ~doubt & (steepest * scale < largest(X.dtype) / 1e3)
        kappa = steepest * sigma[:, 0].abs()  # an error of eps s_1 in sigma changes 1/(sigma_i + sigma_j) by eps kappa of it
        bound = _ROUNDING * n * ulp * (1 + kappa) * steepest * norm(G) * scale + smallest_normal(X.dtype)
        error = norm(torch.where(fits[:, None, None], wide(outcome.gradient) - expected * scale[:, None, None], 0))
        yield Check("gradient", torch.where(fits, ratio(error, bound), 0.0), outcome.gradient, expected)


@dataclass(frozen=True)
class Motion(Target):
    """`kabsch`, or `umeyama` with its scale."""

    kinds: tuple[str, ...] = ("clouds",)
    scaled: bool = False

    def takes(self, X: Tensor) -> bool:
        return X.shape[-1] >= 3 and X.shape[-1] % 2 == 1 and bool((X[..., -1] >= 0).all() and (X[..., -1] > 0).any(-1).all())

    def code(self, options: dict[str, Any]) -> str:
        name = "umeyama" if self.scaled else "kabsch"
        return f"d = X.shape[-1] // 2\nY = tuple(sg.{name}(X[..., :d], X[..., d : 2 * d], X[..., -1]))"

    def twice(self, X: Tensor) -> Tensor:
        """Docs/alignment.md: of `umeyama` from 1e-70 to 1e70, of `kabsch` unless two sizes are far and opposite."""
        d = X.shape[-1] // 2
        exponents = [unit(part)[1] for part in (X[..., :d], X[..., d:-1], X[..., -1:])]
        within = [k.abs() <= _TWICE[self.scaled] for k in exponents]
        if X.dtype == torch.float32:
            return torch.ones(len(X), dtype=torch.bool)
        return (
            (within[0] & within[1] & within[2])
            if self.scaled
            else ((within[0] & within[1]) | (within[2] & (exponents[0].sign() == exponents[1].sign())))
        )

    def judge(self, options: dict[str, Any], X: Tensor, outcome: Outcome, library: Any) -> Iterator[Check]:
        d, ulp = X.shape[-1] // 2, eps(X.dtype)
        R, t = (wide(y) for y in outcome.outputs[:2])
        yield is_rotation(outcome.outputs[0])
        fits = moderate(X[..., :d], X[..., d:-1], X[..., -1:])
        leaf = torch.where(fits[:, None, None], wide(X), 1).requires_grad_()
        cloud = _Cloud(leaf, d, ulp)
        Q, sigma, V = as_found(cloud.A.detach(), R, _ZERO * _NOISE * d * ulp)
        top = sigma[:, 0].abs()
        missed = special(cloud.A.detach())[1].sum(-1) - (R * cloud.A.detach()).sum((-2, -1))
        noise = cloud.noise  # (B,): what rounding in float64 leaves in A
        bound = LIMIT * d * (d * ulp * top + noise)
        yield Check("nearest", _where(fits, ratio(missed.clamp(min=0), bound)), outcome.outputs[0])
        s = torch.ones(len(X), dtype=torch.float64)
        if self.scaled:
            s = torch.where(cloud.single, 1, sigma.sum(-1) / torch.where(cloud.single, 1, cloud.variance.detach()))
            bound = LIMIT * (
                ulp * s.abs() + (d * ulp * top + d * noise) / torch.where(cloud.single, 1, cloud.variance.detach())
            )
            sure = fits & ~cloud.doubt
            yield Check("scale", _where(sure, ratio((wide(outcome.outputs[2]) - s).abs(), bound)), outcome.outputs[2], s)
            s = wide(outcome.outputs[2])
        turned = s.unsqueeze(-1) * (R @ cloud.mean_x.detach().unsqueeze(-1)).squeeze(-1)
        size = cloud.mean_y.detach().norm(dim=-1) + turned.norm(dim=-1) + cloud.far * (1 + s.abs())
        bound = LIMIT * d * ulp * size + smallest_normal(X.dtype)
        error = (t - (cloud.mean_y.detach() - turned)).norm(dim=-1)
        yield Check("translation", _where(fits, ratio(error, bound)), outcome.outputs[1])
        yield from self._gradients(X, outcome, leaf, cloud, (Q, sigma, V), fits & ~cloud.doubt)

    def _gradients(
        self, X: Tensor, outcome: Outcome, leaf: Tensor, cloud: "_Cloud", factors: tuple[Tensor, ...], fits: Tensor
    ) -> Iterator[Check]:
        """The sum of <weight, output> as a function of X, R moving as `pullback` says, s by <R, dA> alone."""
        (R, sigma, V), d, ulp = factors, X.shape[-1] // 2, eps(X.dtype)
        E, doubt = inverse_sums(sigma, _ZERO * _NOISE * d * ulp)
        gR, gt = (wide(cotangent(y, i)) for i, y in enumerate(outcome.outputs[:2]))
        s = torch.ones(len(X), dtype=torch.float64)
        if self.scaled:
            s = torch.where(cloud.single, 1, (R * cloud.A).sum((-2, -1)) / torch.where(cloud.single, 1, cloud.variance))
        mean_x = cloud.mean_x.detach()
        G = gR - s.detach()[:, None, None] * gt.unsqueeze(-1) * mean_x.unsqueeze(-2)
        gA = pullback(R, V, E, G)
        turned = s.unsqueeze(-1) * (R @ cloud.mean_x.unsqueeze(-1)).squeeze(-1)
        loss = (gA * cloud.A).sum() + (gt * (cloud.mean_y - turned)).sum()
        if self.scaled:
            loss = loss + (wide(cotangent(outcome.outputs[2], 2)) * s).sum()
        (expected,) = torch.autograd.grad(loss, leaf)
        expected = torch.where((leaf[..., -1:] > 0), expected, 0).detach()
        steepest = E.flatten(1).amax(1)
        kappa = steepest * sigma[:, 0].abs()
        lost = torch.where(kappa > 0, d * eps(torch.float64) * kappa * (1 + kappa) + steepest * cloud.noise * (1 + kappa), 0)
        sizes = cloud.gradient_sizes(
            steepest * norm(G), gt.norm(dim=-1) * (1 + s.detach().abs()), s.detach().abs(), self.scaled
        )
        for part, name, size in zip((slice(0, d), slice(d, -1), slice(-1, None)), ("x", "y", "weights"), sizes, strict=True):
            sure = fits & ~doubt & (size * len(X[0]) < largest(X.dtype) / 1e3)
            bound = _ROUNDING * (ulp + lost) * size + X[0].numel() * smallest_normal(X.dtype)
            difference = wide(outcome.gradient)[..., part] - expected[..., part]
            error = norm(torch.where(sure[:, None, None], difference, 0))
            yield Check(
                f"gradient of {name}", _where(sure, ratio(error, bound)), outcome.gradient[..., part], expected[..., part]
            )


def _where(sure: Tensor, size: Tensor) -> Tensor:
    return torch.where(sure, size, 0.0)


class _Cloud:
    """Means, variance and A of a cloud in float64, differentiable, and how much of them is rounding."""

    def __init__(self, X: Tensor, d: int, ulp: float) -> None:
        x, y, w = X[..., :d], X[..., d : 2 * d], X[..., -1:]
        used = w > 0
        x, y = torch.where(used, x, 0), torch.where(used, y, 0)
        size = w.detach().amax((1, 2), keepdim=True).clamp(min=1e-300)
        self.total = (w / size).sum((1, 2))[:, None, None]
        self.weight = (self.total.detach() * size).squeeze(-1).squeeze(-1)
        share = w / size / self.total
        self.x, self.y, self.share = x.detach(), y.detach(), share.detach()
        self.mean_x, x, self.variance, self.single, doubt_x = self._around(x, share, ulp)
        self.mean_y, y, _, _, doubt_y = self._around(y, share, ulp)
        self.doubt = doubt_x | doubt_y
        around = (self.x - self.mean_x.detach().unsqueeze(-2), self.y - self.mean_y.detach().unsqueeze(-2))
        self.cx, self.cy = (torch.where(used, p, 0).flatten(1).abs().amax(1) for p in around)
        self.A = (y * share).mT @ x
        far_x, far_y = (p.flatten(1).abs().amax(1) for p in (self.x, self.y))
        tiny = eps(torch.float64) * x.shape[-2]
        self.far = (far_x + far_y) * tiny / ulp  # what rounding leaves of it, in float64
        self.noise = tiny * (far_x * self.cy + far_y * self.cx + self.cx * self.cy)

    @staticmethod
    def _around(x: Tensor, share: Tensor, ulp: float) -> tuple[Tensor, ...]:
        mean = (share * x).sum(-2)
        x = x - mean.unsqueeze(-2)
        variance = (share * x.square()).sum((-2, -1))
        furthest = torch.where(share > 0, x, 0).square().sum(-1).amax(-1).detach()
        size, known = mean.square().sum(-1).detach(), variance.detach()
        single, doubt = torch.zeros(2, len(x), dtype=torch.bool)
        for spread, rounding in ((furthest, ulp), (known, eps(torch.float64))):  # of coordinates, and of the computation
            border = (_COINCIDE * rounding) ** 2 * size
            single = single | (spread <= border)
            doubt = doubt | ((spread > border / _CLEAR) & (spread < border * _CLEAR))
        return mean, torch.where(single[:, None, None], 0, x), variance, single, doubt

    def gradient_sizes(self, gA: Tensor, gt: Tensor, s: Tensor, scaled: bool) -> list[Tensor]:
        """What the gradients of x, y and weights are made of, summed up with absolute values (B,)."""
        most = self.share.flatten(1).amax(1) * self.share.shape[1]
        far = self.mean_x.detach().norm(dim=-1)
        slope = torch.zeros_like(s)
        if scaled:  # of s: by x and by y
            slope = (1 + gt * far) / torch.where(self.single, 1, self.variance.detach())
        x = most * (gA * self.cy + gt + slope * (self.cy + 2 * s * self.cx))
        y = most * (gA * self.cx + gt + slope * self.cx)
        every = (
            gA * self.cx * self.cy + gt * (self.cx + self.cy + self.far) + slope * (self.cx * self.cy + s * self.cx.square())
        )
        return [x, y, every / self.weight * self.share.shape[1]]


CLOUDS: list[Target] = [Procrustes("procrustes(special)"), Motion("kabsch"), Motion("umeyama", scaled=True)]

"""Whitening and colouring inside a network: by decompositions (PAMI 5.3, eq. 30-33), or learned with regularisers."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad.linalg.power.iteration import kept_pairs
from spectralgrad.linalg.precision import matmul
from spectralgrad.nn.powers import centred, covariance

VARIANTS = ("gd", "clip", "pi", "taylor", "exact")
CLIP = 100.0  # PAMI's threshold
START = 0.1  # factor of the first weights of a learned colouring
STEPS = {"taylor": 9, "pi": 19}  # K of PAMI 5.3.2, and of NIPS19


class Colours(NamedTuple):
    """What a style leaves for the hops of a generator; the penalty is the regularisers' part, 0 where there are none."""

    matrices: Tensor  # (N, hops, groups, d, d): S_c
    means: Tensor  # (N, hops, C): mu_c
    penalty: Tensor  # ()

    def repeated(self, times: int) -> "Colours":
        """The same colours for ``times`` batches of contents, one after the other."""
        return Colours(self.matrices.repeat(times, 1, 1, 1, 1), self.means.repeat(times, 1, 1), self.penalty)


class Roots(nn.Module):
    """(M + eps I)^(-1/2) or (M + eps I)^(1/2) of covariances, with the gradient of a variant.

    exact is the gradient of the matrix function; clip and taylor go through eigenvectors as in PAMI; pi is NIPS19's SVD-PI,
    which also drops what its breaking conditions drop. In training pi takes the series that its iterations sum to, without
    a loop over eigenvectors and steps (docs/rules/power_iteration.md): s steps with two-sided deflation are `Taylor(s - 1)`,
    as printed they are a degree less for the pairs reached through the deflation. In evaluation it runs the algorithm, so
    that its time can be measured.

    Args:
        variant: clip, pi, taylor or exact.
        inverse: the inverse root.
        eps: the shift; eigenvalues below it count as it.
        iterations: K of Taylor or the steps of pi; None for 9 and 19.
        deflation: of pi: two-sided or printed.

    >>> Roots("exact", inverse=True, eps=1.0)(3 * torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    def __init__(
        self, variant: str, inverse: bool, eps: float, iterations: int | None = None, deflation: str = "two-sided"
    ) -> None:
        super().__init__()
        self.variant, self.inverse, self.eps = variant, inverse, eps
        self.gradient = rule_of(variant, eps, iterations, deflation)

    def forward(self, M: Tensor) -> Tensor:
        M = M + self.eps * torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
        if isinstance(self.gradient, sg.PowerIteration) and self.training:
            return _by_series(M, self.gradient, self.eps, -0.5 if self.inverse else 0.5)
        root = sg.inv_sqrtm if self.inverse else sg.sqrtm
        return root(M, gradient=self.gradient, floor=self.eps)

    def extra_repr(self) -> str:
        return f"{self.variant}, inverse={self.inverse}, eps={self.eps}, gradient={self.gradient}"


def rule_of(variant: str, eps: float, iterations: int | None, deflation: str = "two-sided") -> sg.Rule | sg.PowerIteration:
    """The gradient rule of a variant that decomposes.

    Raises:
        OptionError: a variant that does not decompose, or iterations or a deflation for one that has none.

    >>> rule_of("taylor", 0.01, None)
    Taylor(degree=9)
    """
    if variant not in VARIANTS or variant == "gd":
        raise OptionError(f"`StyleNetwork`: variant must be one of {', '.join(VARIANTS)}, got {variant!r}.")
    if iterations is not None and variant not in STEPS:
        raise OptionError(
            f"`StyleNetwork`: iterations are those of {', '.join(STEPS)}; {variant} has none, got {iterations!r}."
        )
    if deflation != "two-sided" and variant != "pi":
        raise OptionError(f"`StyleNetwork`: deflation is that of pi, got {deflation!r} for {variant}. Leave it out.")
    steps = STEPS.get(variant, 0) if iterations is None else iterations
    if variant == "pi":
        side = cast(Literal["two-sided", "printed"], deflation)
        if side == "printed":
            return sg.PowerIteration.printed(steps, eps)
        return sg.PowerIteration(steps, min_eigenvalue=eps, deflation=side)  # it too breaks at what the shift alone explains
    return {"clip": sg.Clip(CLIP), "taylor": sg.Taylor(steps), "exact": sg.Exact()}[variant]


@dataclass(frozen=True)
class PrintedSeries(sg.Rule):
    """What ``degree`` + 1 power iterations sum to where the deflation is M - M v v^T.

    Column i holds the gradient of v_i, ascending. Its components along smaller eigenvalues come from its own iterations,
    as in `Taylor(degree)`; those along larger ones through their deflation, which loses the leading term.

    >>> PrintedSeries(1).coefficients(torch.tensor([1.0, 2.0]))
    tensor([[ 0.0000,  0.7500],
            [-0.5000,  0.0000]])
    """

    degree: int

    def coefficients(self, eigenvalues: Tensor) -> Tensor:
        own = sg.Taylor(self.degree).coefficients(eigenvalues).triu(1)
        if self.degree == 0:
            return own
        return own + sg.Taylor(self.degree - 1).coefficients(eigenvalues).tril(-1)


def _by_series(M: Tensor, rule: sg.PowerIteration, floor: float, power: float) -> Tensor:
    """M^power (*B, d, d) with the gradient and the breaks of SVD-PI."""
    series = PrintedSeries if rule.deflation == "printed" else sg.Taylor
    w, V = sg.eigh(M, gradient=series(rule.steps - 1))  # (*B, d) ascending
    # Rayleigh quotients of the deflated matrices are the eigenvalues themselves to rounding: that break never comes.
    descending = w.detach().flip(-1)
    kept = kept_pairs(rule, descending, descending).flip(-1)
    y = torch.where(kept, w.clamp(min=floor).pow(power), 0)
    return matmul(V * y.unsqueeze(-2), V.mT)


class Decomposed(nn.Module):
    """One hop by decomposition: y = S_c S_w (x - mu_w) + mu_c in groups of channels, for each sample (eq. 30-33).

    Its style features come from an MLP at every position of the style encoder's map; S_c is the root of their covariance.

    Args:
        channels: of the features.
        variant, eps, iterations, deflation: as in `Roots`.
        group_size: channels that are whitened together; divides the channels.
    """

    def __init__(
        self,
        channels: int,
        variant: str,
        group_size: int,
        eps: float,
        iterations: int | None = None,
        deflation: str = "two-sided",
    ) -> None:
        super().__init__()
        self.group_size = group_size
        self.mlp = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.ReLU(), nn.Conv2d(channels, channels, 1))
        self.whitening = Roots(variant, True, eps, iterations, deflation)

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, groups, d, n) of x (N, C, H, W) with the identity for covariance, and a penalty, here 0."""
        with torch.autocast(x.device.type, enabled=False):  # covariances and all that follows in float32
            X, _ = centred(grouped(x, self.group_size))
            return matmul(self.whitening(covariance(X)), X), X.new_zeros(())

    def forward(self, x: Tensor, matrix: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Whiten x (N, C, H, W), colour it with S_c (N, groups, d, d) and mu_c (N, C); and the penalty."""
        white, penalty = self.whiten(x)
        return colour(white, matrix, mean, x), penalty


class Learned(nn.Module):
    """One hop as in group-wise deep whitening and colouring: linear maps that regularisers drive to what they stand for.

    Whitening is a learned map of each group, after the mean is taken away, with the penalty |cov - I|. Colouring is
    U D U^T, where an MLP of the pooled style gives U D: D are the norms of its columns. Its penalty is |U^T U - I|.

    Args:
        channels: of the features.
        group_size: channels that are mapped together; divides the channels.
    """

    def __init__(self, channels: int, group_size: int) -> None:
        super().__init__()
        groups = channels // group_size
        self.group_size = group_size
        self.map = nn.Parameter(torch.eye(group_size).repeat(groups, 1, 1))  # in the place of S_w
        self.mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Unflatten(1, (channels, 1)))
        # A group's matrix and mean from the group's part of the hidden layer: d x d^2 weights, not C x C d.
        self.matrix = nn.Conv1d(channels, channels * group_size, 1, groups=groups)
        self.mean = nn.Conv1d(channels, channels, 1, groups=groups)
        with torch.no_grad():  # a start near U = D = I: five hops one after the other would multiply what they add to it
            self.matrix.weight.mul_(START)
            self.matrix.bias.mul_(START)  # type: ignore[union-attr]

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mapped features (N, groups, d, n) of x (N, C, H, W), and how far their covariance is from the identity."""
        with torch.autocast(x.device.type, enabled=False):
            X, _ = centred(grouped(x, self.group_size))
            white = matmul(self.map, X)
            identity = torch.eye(self.group_size, dtype=X.dtype, device=X.device)
            return white, (covariance(white) - identity).abs().mean()

    def colours(self, code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """S_c (N, groups, d, d), mu_c (N, C) and the penalty, of a style code (N, C)."""
        with torch.autocast(code.device.type, enabled=False):
            hidden = self.mlp(at_least_single(code))  # (N, C, 1)
            X = self.matrix(hidden).squeeze(-1).unflatten(1, (-1, self.group_size, self.group_size))
            identity = torch.eye(self.group_size, dtype=X.dtype, device=X.device)
            X = X + identity  # a start at the identity
            D = torch.linalg.vector_norm(X, dim=-2, keepdim=True).clamp(min=torch.finfo(X.dtype).eps)
            U = X / D
            return (U * D) @ U.mT, self.mean(hidden).squeeze(-1), (U.mT @ U - identity).abs().mean()

    def forward(self, x: Tensor, matrix: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        white, penalty = self.whiten(x)
        return colour(white, matrix, mean, x), penalty


def at_least_single(x: Tensor) -> Tensor:
    """x in float32, or in float64 if that is what it has."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def grouped(x: Tensor, size: int) -> Tensor:
    """Maps (N, C, H, W) as samples (N, C / size, size, H W) in groups of neighbouring channels, at least in float32."""
    samples: Tensor = at_least_single(x).flatten(2).unflatten(1, (-1, size))
    return samples


def colour(white: Tensor, matrix: Tensor, mean: Tensor, like: Tensor) -> Tensor:
    """S_c white + mu_c for white (N, groups, d, n), S_c (N, groups, d, d), mu_c (N, C), in the shape and layout of a map."""
    with torch.autocast(white.device.type, enabled=False):
        y = matmul(matrix, white).flatten(1, 2) + mean.unsqueeze(-1)
        layout = torch.channels_last if like.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
        return y.reshape(like.shape).contiguous(memory_format=layout)

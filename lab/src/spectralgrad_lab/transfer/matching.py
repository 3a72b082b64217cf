"""The affine map that gives one set of features the mean and covariance of another: whitening, then colouring."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spectralgrad.kernels.graphs import Replayed
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.covariance import Moments, merge_moments, moments
from spectralgrad.linalg.functions import inv_sqrtm
from spectralgrad.linalg.precision import hermitian_part, matmul, sandwich
from spectralgrad.linalg.products import NewtonSchulz
from spectralgrad.nn.powers import power_of

__all__ = ["Coloring", "Matching", "gathered", "matching", "relative_eps"]

Coloring = Literal["nearest", "zca"]
_CHUNK = 2**22  # numbers that are made float64 at a time: 32 MiB
# What a constant picture's features may differ by, relative to their size: after a level they are those of a picture that
# was decoded in float32, and they are rounded themselves.
_OF_THE_PICTURE = 64 * torch.finfo(torch.float32).eps
_OF_FEATURES = 4  # times their eps
_NOTHING = 1e-30  # where even that is zero: all features are


class Matching(NamedTuple):
    """y = matrix (x - center) + mean in each group of channels."""

    matrix: Tensor  # (groups, d, d)
    center: Tensor  # (groups, d, 1)
    mean: Tensor  # (groups, d, 1)

    def __call__(self, x: Tensor) -> Tensor:
        """x (C, n), or (C, H, W), to full accuracy of float32."""
        groups, d = self.center.shape[:2]
        samples = x.to(self.matrix.dtype).reshape(groups, d, -1)
        return torch.add(matmul(self.matrix, samples - self.center), self.mean).reshape(x.shape)


def gathered(x: Tensor, groups: int = 1) -> Moments:
    """Moments of features (C, n) in float64, a part at a time; merged exactly, so the size of the parts does not matter."""
    chunks = x.split(max(1, _CHUNK // x.shape[0]), dim=1)
    return merge_moments([moments(chunk.double(), group_size=x.shape[0] // groups) for chunk in chunks])


def relative_eps(content: Moments, rtol: float, dtype: torch.dtype) -> Tensor:
    """The shift (groups, 1, 1) of a content's covariance: a part of its mean eigenvalue, and never below rounding.

    eps = rtol tr(C) / d + r^2 |mean|^2 / d, r what rounding may cause in features that were computed in ``dtype``. The
    second term says that features which differ by rounding alone do not differ: a constant picture has nothing to whiten.
    """
    d = content.mean.shape[-1]
    trace = content.covariance().diagonal(dim1=-2, dim2=-1).sum(-1)
    rounding = max(_OF_THE_PICTURE, _OF_FEATURES * torch.finfo(dtype).eps)
    eps = (rtol * trace + rounding**2 * content.mean.square().sum(-1)) / d
    return eps.clamp(min=_NOTHING)[:, None, None]


# The maps of covariances (groups, d, d), C positive definite. A level has one matrix to decompose: on a GPU the host takes
# longer to launch the products than the GPU to compute them, unless it replays them.


def zca_map(C: Tensor, style: Tensor) -> Tensor:
    return matmul(_root(style), inv_sqrtm(C))


def nearest_map(C: Tensor, style: Tensor) -> Tensor:
    L = torch.linalg.cholesky_ex(C).L
    root = _root(hermitian_part(sandwich(L.mT, style)))
    left = torch.linalg.solve_triangular(L.mT, root, upper=True)
    color: Tensor = torch.linalg.solve_triangular(L, left, upper=False, left=False)
    return color


def _root(C: Tensor) -> Tensor:
    """C^(1/2), of singular ones too; by products on a GPU, for these can be replayed."""
    return power_of(C, 0.5, 0.0, None, NewtonSchulz() if C.is_cuda else AUTO)


_MAPS: dict[Coloring, Replayed] = {"zca": Replayed(zca_map), "nearest": Replayed(nearest_map)}


def matching(
    content: Moments, style: Moments, eps: Tensor | float, strength: float = 1.0, coloring: Coloring = "zca"
) -> Matching:
    """The map that whitens and colours, blended with the identity, in float32.

        y = (1 - s) x + s (C_s^(1/2) Q (C_c + eps I)^(-1/2) (x - m_c) + m_s)

    Any orthogonal Q gives the covariance of the style. Q = I is PAMI eq. 30-33. With Q the polar factor of
    C_s^(1/2) C^(1/2), C = C_c + eps I, the map is C^(-1/2) (C^(1/2) C_s C^(1/2))^(1/2) C^(-1/2): of all those maps the one
    that moves the content least, symmetric and positive, so that no direction is turned into its opposite. There is one such
    map only, so that any factor of C serves in the place of C^(1/2); from C = L L^T it is L^-T (L^T C_s L)^(1/2) L^-1, with
    one decomposition instead of two. A group whose mean variance is not above eps is constant but for rounding, which no
    level may blow up for the next one to take for texture: it gets the style's mean alone.

    Args:
        content: of the features that will be mapped.
        style: whose mean and covariance they get.
        eps: the shift of the content's covariance, > 0; a number or (groups, 1, 1).
        strength: s.
        coloring: "zca", Q = I; or "nearest".

    >>> x, y = torch.randn(2, 50), torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    >>> (z := matching(gathered(x), gathered(y), 1e-12)(x)).mean(1).abs().round(decimals=4)
    tensor([2., 0.])
    """
    C = content.covariance()
    identity = torch.eye(C.shape[-1], dtype=C.dtype, device=C.device)
    varied = C.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] > eps
    color = torch.where(varied, _MAPS[coloring](C + eps * identity, style.covariance()), 0)
    matrix = (1 - strength) * identity + strength * color
    mean = torch.lerp(content.mean, style.mean, strength)
    return Matching(matrix.float(), content.mean.float().unsqueeze(-1), mean.float().unsqueeze(-1))

"""Statistics merged exactly over the ranks of a process group, once the ranks agree on what they bring."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.linalg.covariance import Moments, merge_moments
from spectralgrad.linalg.precision import in_widest, matmul

_BYTES = 128  # of a description: the same on every rank, whatever it says


class Share(NamedTuple):
    """What a rank brings to the exchange of a layer; the same on every rank, or the payloads do not fit together."""

    channels: int
    group_size: int
    dtype: str
    device: str
    layer: str

    @classmethod
    def of(cls, who: str, channels: int, group_size: int, dtype: torch.dtype, device: torch.device) -> "Share":
        return cls(channels, group_size, str(dtype).removeprefix("torch."), device.type, who)

    def __str__(self) -> str:
        return f"{self.layer}, {self.channels} channels in groups of {self.group_size}, {self.dtype} on {self.device}"


def require_agreement(mine: Share, group: Any, device: torch.device) -> None:
    """Raise on every rank unless all of them bring the same; one exchange of a fixed size, so that it always fits.

    Payloads of different sizes must never meet: gloo ends the process (SIGABRT) that gets more than it expects.

    Raises:
        ShapeError, DtypeError, OptionError: other channels or groups; another dtype; another device or layer.
        RuntimeError: a rank did not come.
    """
    words = "|".join(map(str, mine)).encode()[:_BYTES].ljust(_BYTES)
    packed = torch.tensor(list(words), dtype=torch.uint8, device=device)
    parts = [torch.empty_like(packed) for _ in range(dist.get_world_size(group))]
    with _collective(mine.layer):
        dist.all_gather(parts, packed, group=group)
    texts = [bytes(part.tolist()).decode(errors="replace").strip() for part in parts]
    if len(set(texts)) == 1:
        return
    shares = [Share(int(channels), int(size), *rest) for channels, size, *rest in (text.split("|", 4) for text in texts)]
    different = next(name for name in Share._fields if len({getattr(each, name) for each in shares}) > 1)
    error = {"channels": ShapeError, "group_size": ShapeError, "dtype": DtypeError}.get(different, OptionError)
    raise error(
        f"`{mine.layer}`: every rank of process_group must bring the same layer, channels, groups, dtype and device in the "
        f"same order, got {_told(shares)}. Build the same model on every rank, and give it inputs of one dtype."
    )


def _told(shares: Sequence[Share]) -> str:
    """Which rank has what; equal ones together.

    >>> a, b = Share(6, 3, "float32", "cpu", "DBN"), Share(8, 4, "float32", "cpu", "DBN")
    >>> _told([a, b, a])
    'on rank 0, 2: DBN, 6 channels in groups of 3, float32 on cpu; on rank 1: DBN, 8 channels in groups of 4, float32 on cpu'
    """
    ranks = {share: [str(rank) for rank, each in enumerate(shares) if each == share] for share in shares}
    return "; ".join(f"on rank {', '.join(those)}: {share}" for share, those in ranks.items())


def merged_moments(who: str, local: Moments, group: Any) -> tuple[Moments, Tensor]:
    """The moments of all ranks' samples together, and which ranks (world,) came with NaN or Inf.

    Exact in value and gradient: as if one process held every sample. Ranks may hold different numbers of samples, or
    none. One collective forward, one backward; the gradient is that of the sum of all ranks' losses, as in
    SyncBatchNorm. Nothing is checked before the collective: a rank that raised alone would leave the others waiting.
    """
    total, mean, scatter, broken = _Merge.apply(*local, group, who)
    return Moments(total, mean, scatter), broken


@contextmanager
def _collective(who: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"`{who}`: the statistics could not be exchanged over process_group. Another rank died, raised an error before "
            f"its forward or backward pass, or did not come within the group's timeout: look there first. ({error})"
        ) from error


class _AllReduce(Function):
    """The sum over all ranks: its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, who: str) -> Tensor:
        ctx.group, ctx.who = group, who
        x = x.clone(memory_format=torch.contiguous_format)
        with _collective(who):
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _AllReduce.apply(g, ctx.group, ctx.who), None, None


class _Merge(Function):
    """Local moments (n_i, m_i, S_i) -> those of the union, and which ranks brought NaN or Inf.

    m = sum n_i m_i / n and S = sum S_i + n_i (m_i - m)(m_i - m)^T. Since sum n_i (m_i - m) = 0, S does not change with
    m to first order, and for the gradients G_m, G_S of the sum of all losses

        dS_i = G_S,   dm_i = (n_i / n) G_m + n_i (G_S + G_S^T)(m_i - m).
    """

    @staticmethod
    def forward(ctx: Any, samples: Tensor, mean: Tensor, scatter: Tensor, group: Any, who: str) -> tuple[Tensor, ...]:
        # In float64, so that the count is exact and rounding happens once.
        packed = torch.cat([in_widest(x).flatten() for x in (samples, mean, scatter)])
        parts = [torch.empty_like(packed) for _ in range(dist.get_world_size(group))]
        with _collective(who):
            dist.all_gather(parts, packed, group=group)
        unpacked = [part.split([1, mean.numel(), scatter.numel()]) for part in parts]
        merged = merge_moments([Moments(n[0], m.view_as(mean), S.view_as(scatter)) for n, m, S in unpacked])
        total, m, S = merged.samples, merged.mean.to(mean.dtype), merged.scatter.to(mean.dtype)
        broken = ~torch.isfinite(torch.stack(parts)).all(-1)
        ctx.mark_non_differentiable(total, broken)
        ctx.save_for_backward(samples, mean, total, m)
        ctx.group, ctx.who = group, who
        return total, m, S, broken

    @staticmethod
    def backward(ctx: Any, _: Any, g_mean: Tensor, g_scatter: Tensor, __: Any) -> tuple[Tensor | None, ...]:
        samples, mean, total, merged_mean = ctx.saved_tensors
        packed = _AllReduce.apply(torch.cat([g_mean.flatten(), g_scatter.flatten()]), ctx.group, ctx.who)
        g_mean, g_scatter = packed[: mean.numel()].view_as(g_mean), packed[mean.numel() :].view_as(g_scatter)
        n, weight = (x.to(mean.dtype) for x in (samples, samples / total.clamp(min=1)))
        shift = (mean - merged_mean).unsqueeze(-1)  # (groups, d, 1)
        through_scatter = matmul(g_scatter + g_scatter.mT, shift).squeeze(-1)
        return None, weight * g_mean + n * through_scatter, g_scatter, None, None

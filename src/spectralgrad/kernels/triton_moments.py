"""The Triton code of moments.py."""

# mypy: disable-error-code="import-untyped,import-not-found,untyped-decorator"
import triton
import triton.language as tl

from .triton_tiles import channels_of, offsets_of, rows_of, store_blocks


@triton.jit
def moments_of_splits(
    x: tl.tensor,
    scatters: tl.tensor,  # (splits, C, D)
    shifts: tl.tensor,  # (splits, C)
    means: tl.tensor,  # (splits, C), less the shifts
    C: tl.tensor,
    P: tl.tensor,
    samples: tl.tensor,
    by_image: tl.tensor,
    by_channel: tl.tensor,
    by_position: tl.tensor,
    chunk: tl.tensor,
    D: tl.constexpr,
    G: tl.constexpr,
    T: tl.constexpr,
    K: tl.constexpr,
    FEW: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Mean and centred scatter of one split's samples.

    Sums are taken of x - shift, the shift being the mean of the split's first few samples: near enough to the mean for
    the correction n m m^T to cost nothing. The mean leaves in two parts, shift and what is above it: together they keep
    the digits that a large mean would round away.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    channels, inside = channels_of(tile, 0, C, D, G, T)
    rows = rows_of(x, channels, by_channel)
    start = split * chunk
    end = start + tl.minimum(chunk, samples - start)

    few = start + tl.arange(0, FEW)
    some = inside[:, None] & (few < end)[None, :]
    head = tl.load(rows + offsets_of(few, P, by_image, by_position)[None, :], mask=some, other=0.0)
    shift = tl.sum(head.to(tl.float32), 1) / tl.minimum(FEW, end - start).to(tl.float32)

    sums = tl.zeros((T, K), dtype=tl.float32)
    products = tl.zeros((T, T), dtype=tl.float32)
    for first in range(start, end, K):
        these = first + tl.arange(0, K)
        mask = inside[:, None] & (these < end)[None, :]
        block = tl.load(rows + offsets_of(these, P, by_image, by_position)[None, :], mask=mask, other=0.0)
        shifted = tl.where(mask, block.to(tl.float32) - shift[:, None], 0.0)
        sums += shifted
        products = tl.dot(shifted, tl.trans(shifted), products, input_precision=PRECISION)

    total = tl.sum(sums, 1)
    mean = total / (end - start).to(tl.float32)
    tl.store(shifts + split * C + channels, shift, mask=inside)
    tl.store(means + split * C + channels, mean, mask=inside)
    store_blocks(scatters + split.to(tl.int64) * C * D, products - total[:, None] * mean[None, :], channels, inside, D)


@triton.jit
def _merged(
    scatters: tl.tensor,
    shifts: tl.tensor,
    means: tl.tensor,
    channel: tl.tensor,
    columns: tl.tensor,  # (WIDTH,)
    C: tl.tensor,
    samples: tl.tensor,
    chunk: tl.tensor,
    splits: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    B: tl.constexpr,
) -> tl.tensor:
    """One channel's row of the scatter up to the diagonal (WIDTH,), its mean, and what rounding leaves in that.

    Chan's formula, S = sum S_i + n_i (m_i - m)(m_i - m)^T, always in the same order. All means are taken relative to the
    mean of the shifts: small numbers, however large the mean.
    """
    group = channel // D * D
    inside = group + columns <= channel
    here = group + columns == channel
    whole = samples * 1.0  # where it is 1, Triton makes it a plain number

    near = tl.zeros((B, WIDTH), dtype=tl.float32)
    for first in range(0, splits, B):
        split = first + tl.arange(0, B)
        n = tl.minimum(samples - split * chunk, chunk).to(tl.float32)
        mask = (split < splits)[:, None] & inside[None, :]
        shift = tl.load(shifts + split[:, None] * C + group + columns[None, :], mask=mask, other=0.0)
        near += tl.where(mask, shift * (n / whole)[:, None], 0.0)
    origin = tl.sum(near, 0)  # (WIDTH,)

    weighted = tl.zeros((B, WIDTH), dtype=tl.float32)
    for first in range(0, splits, B):
        split = first + tl.arange(0, B)
        n = tl.minimum(samples - split * chunk, chunk).to(tl.float32)
        mask = (split < splits)[:, None] & inside[None, :]
        where = split[:, None] * C + group + columns[None, :]
        shift = tl.load(shifts + where, mask=mask, other=0.0)
        m = (shift - origin[None, :]) + tl.load(means + where, mask=mask, other=0.0)
        weighted += tl.where(mask, m * (n / whole)[:, None], 0.0)
    centre = tl.sum(weighted, 0)  # (WIDTH,), above the origin

    row = tl.zeros((B, WIDTH), dtype=tl.float32)
    for first in range(0, splits, B):
        split = first + tl.arange(0, B)
        n = tl.minimum(samples - split * chunk, chunk).to(tl.float32)
        mask = (split < splits)[:, None] & inside[None, :]
        where = split[:, None] * C + group + columns[None, :]
        shift = tl.load(shifts + where, mask=mask, other=0.0)
        m = (shift - origin[None, :]) + tl.load(means + where, mask=mask, other=0.0) - centre[None, :]
        own = tl.sum(tl.where(here[None, :], m, 0.0), 1)  # (B,)
        part = tl.load(scatters + ((split.to(tl.int64) * C + channel) * D)[:, None] + columns[None, :], mask=mask, other=0.0)
        row += tl.where(mask, part + (n * own)[:, None] * m, 0.0)

    # a + b = mean + correction exactly (Knuth), so that a large mean costs no digits later.
    a = tl.sum(tl.where(here, origin, 0.0), 0)
    b = tl.sum(tl.where(here, centre, 0.0), 0)
    mean = a + b
    part_of_b = mean - a
    return tl.sum(row, 0), mean, (a - (mean - part_of_b)) + (b - part_of_b)


@triton.jit
def _store_row(to: tl.tensor, value: tl.tensor, channel: tl.tensor, columns: tl.tensor, D: tl.constexpr) -> None:
    """A row up to the diagonal, to both sides of it: symmetric to the last bit."""
    group = channel // D * D
    inside = group + columns <= channel
    tl.store(to + channel * D + columns, value, mask=inside)
    tl.store(to + (group + columns) * D + (channel - group), value, mask=inside)


@triton.jit
def merge_moments(
    scatters: tl.tensor,
    shifts: tl.tensor,
    means: tl.tensor,
    mean: tl.tensor,  # (C,)
    correction: tl.tensor,  # (C,)
    scatter: tl.tensor,  # (C, D)
    C: tl.tensor,
    samples: tl.tensor,
    chunk: tl.tensor,
    splits: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """Mean and scatter of all splits, for one channel's row."""
    channel, columns = tl.program_id(0), tl.arange(0, WIDTH)
    row, value, below = _merged(
        scatters, shifts, means, channel, columns, C, samples, chunk, splits, D, WIDTH, B
    )  # fmt: skip
    _store_row(scatter, row, channel, columns, D)
    tl.store(mean + channel, value)
    tl.store(correction + channel, below)


@triton.jit
def _average(old: tl.tensor, new: tl.tensor, momentum: tl.tensor) -> tl.tensor:
    """torch.lerp: exact at both ends."""
    step = new - old
    return tl.where(momentum < 0.5, old + momentum * step, new - step * (1.0 - momentum))


@triton.jit
def merge_covariances(
    scatters: tl.tensor,
    shifts: tl.tensor,
    means: tl.tensor,
    mean: tl.tensor,  # (C,)
    correction: tl.tensor,  # (C,)
    covariance: tl.tensor,  # (C, D)
    shifted: tl.tensor,  # (C, D): covariance + eps I
    running_mean: tl.tensor,  # (C,)
    running_covariance: tl.tensor,  # (C, D)
    count: tl.tensor,  # of batches, int64
    C: tl.tensor,
    samples: tl.tensor,
    chunk: tl.tensor,
    splits: tl.tensor,
    eps: tl.tensor,
    momentum: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    B: tl.constexpr,
    HAS_RUNNING: tl.constexpr,
) -> None:
    """`merge_moments` for a training step: over the number of samples, shifted, and averaged into the running values."""
    channel, columns = tl.program_id(0), tl.arange(0, WIDTH)
    row, value, below = _merged(
        scatters, shifts, means, channel, columns, C, samples, chunk, splits, D, WIDTH, B
    )  # fmt: skip
    row = row / (samples * 1.0)
    group = channel // D * D
    _store_row(covariance, row, channel, columns, D)
    _store_row(shifted, row + tl.where(group + columns == channel, eps, 0.0), channel, columns, D)
    tl.store(mean + channel, value)
    tl.store(correction + channel, below)
    if HAS_RUNNING:
        tl.store(running_mean + channel, _average(tl.load(running_mean + channel), value, momentum))
        to_row = running_covariance + channel * D + columns
        to_column = running_covariance + (group + columns) * D + (channel - group)
        below_diagonal = group + columns < channel  # the column's part without the diagonal, which the row's has
        in_row = group + columns <= channel
        old_row = tl.load(to_row, mask=in_row, other=0.0)
        old_column = tl.load(to_column, mask=below_diagonal, other=0.0)
        tl.store(to_row, _average(old_row, row, momentum), mask=in_row)
        tl.store(to_column, _average(old_column, row, momentum), mask=below_diagonal)
        if channel == 0:
            tl.store(count, tl.load(count) + 1)

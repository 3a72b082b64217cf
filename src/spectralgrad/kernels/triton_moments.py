"""The Triton code of moments.py."""

# mypy: disable-error-code="import-untyped,import-not-found,untyped-decorator"
import triton
import triton.language as tl

from .triton_tiles import channels_of, offsets_of, store_blocks


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
    rows = x + (channels * by_channel)[:, None]
    start = split * chunk
    end = tl.minimum(start + chunk, samples)

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
def merge_moments(
    scatters: tl.tensor,
    shifts: tl.tensor,
    means: tl.tensor,
    mean: tl.tensor,  # (C,)
    rest: tl.tensor,  # (C,)
    scatter: tl.tensor,  # (C, D)
    C: tl.tensor,
    samples: tl.tensor,
    chunk: tl.tensor,
    splits: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """Chan's formula for one channel's row: S = sum S_i + n_i (m_i - m)(m_i - m)^T, always in the same order.

    All means are taken relative to the mean of the shifts: small numbers, however large the mean. Only entries up to the
    diagonal are computed and written to both sides: symmetric to the last bit.
    """
    channel = tl.program_id(0)
    group = channel // D * D
    columns = tl.arange(0, WIDTH)
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
    value = tl.sum(row, 0)
    tl.store(scatter + channel * D + columns, value, mask=inside)
    tl.store(scatter + (group + columns) * D + (channel - group), value, mask=inside)

    # a + b = mean + rest exactly (Knuth), so that a large mean costs no digits later.
    a = tl.sum(tl.where(here, origin, 0.0), 0)
    b = tl.sum(tl.where(here, centre, 0.0), 0)
    rounded = a + b
    part_of_b = rounded - a
    tl.store(mean + channel, rounded)
    tl.store(rest + channel, (a - (rounded - part_of_b)) + (b - part_of_b))

"""The Triton code of affine.py."""

# mypy: disable-error-code="import-untyped,import-not-found,untyped-decorator"
import triton
import triton.language as tl

from .triton_tiles import block_of, channels_of, offsets_of, rows_of, store_blocks


@triton.jit
def products_of_splits(
    g: tl.tensor,
    x: tl.tensor,
    mean: tl.tensor,
    correction: tl.tensor,
    products: tl.tensor,  # (splits, C, D)
    sums: tl.tensor,  # (splits, C)
    C: tl.tensor,
    P: tl.tensor,
    samples: tl.tensor,
    g_by_image: tl.tensor,
    g_by_channel: tl.tensor,
    g_by_position: tl.tensor,
    by_image: tl.tensor,
    by_channel: tl.tensor,
    by_position: tl.tensor,
    chunk: tl.tensor,
    D: tl.constexpr,
    G: tl.constexpr,
    T: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
) -> None:
    """sum of g (x - mean)^T and of g over one split's samples."""
    tile, split = tl.program_id(0), tl.program_id(1)
    channels, inside = channels_of(tile, 0, C, D, G, T)
    g_rows = rows_of(g, channels, g_by_channel)
    rows = rows_of(x, channels, by_channel)
    centre = tl.load(mean + channels, mask=inside, other=0.0)
    if HAS_CORRECTION:
        below = tl.load(correction + channels, mask=inside, other=0.0)
    start = split * chunk
    end = start + tl.minimum(chunk, samples - start)
    total = tl.zeros((T, K), dtype=tl.float32)
    product = tl.zeros((T, T), dtype=tl.float32)
    for first in range(start, end, K):
        these = first + tl.arange(0, K)
        mask = inside[:, None] & (these < end)[None, :]
        upper = tl.load(g_rows + offsets_of(these, P, g_by_image, g_by_position)[None, :], mask=mask, other=0.0)
        block = tl.load(rows + offsets_of(these, P, by_image, by_position)[None, :], mask=mask, other=0.0)
        upper = upper.to(tl.float32)
        centred = block.to(tl.float32) - centre[:, None]
        if HAS_CORRECTION:
            centred = centred - below[:, None]
        centred = tl.where(mask, centred, 0.0)
        total += upper
        product = tl.dot(upper, tl.trans(centred), product, input_precision=PRECISION)
    tl.store(sums + split * C + channels, tl.sum(total, 1), mask=inside)
    store_blocks(products + split.to(tl.int64) * C * D, product, channels, inside, D)


@triton.jit
def _added(
    products: tl.tensor,
    sums: tl.tensor,
    channel: tl.tensor,
    columns: tl.tensor,  # (WIDTH,)
    C: tl.tensor,
    splits: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    B: tl.constexpr,
) -> tl.tensor:
    """The sums over splits for one channel's row (WIDTH,), and for the channel, always in the same order."""
    row = tl.zeros((B, WIDTH), dtype=tl.float32)
    own = tl.zeros((B,), dtype=tl.float32)
    for first in range(0, splits, B):
        split = first + tl.arange(0, B)
        exists = split < splits
        mask = exists[:, None] & (columns < D)[None, :]
        where = (split.to(tl.int64) * C + channel) * D
        row += tl.load(products + where[:, None] + columns[None, :], mask=mask, other=0.0)
        own += tl.load(sums + split * C + channel, mask=exists, other=0.0)
    return tl.sum(row, 0), tl.sum(own, 0)


@triton.jit
def add_splits(
    products: tl.tensor,
    sums: tl.tensor,
    product: tl.tensor,  # (C, D)
    total: tl.tensor,  # (C,)
    C: tl.tensor,
    splits: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """The sums over splits, for one channel's row."""
    channel, columns = tl.program_id(0), tl.arange(0, WIDTH)
    row, own = _added(products, sums, channel, columns, C, splits, D, WIDTH, B)
    tl.store(product + channel * D + columns, row, mask=columns < D)
    tl.store(total + channel, own)


@triton.jit
def add_gradients(
    products: tl.tensor,
    sums: tl.tensor,
    weight: tl.tensor,  # (C,)
    A: tl.tensor,  # (C, D)
    dA: tl.tensor,  # (C, D)
    dweight: tl.tensor,  # (C,)
    dbias: tl.tensor,  # (C,)
    shift: tl.tensor,  # (C,): dbias over samples
    C: tl.tensor,
    splits: tl.tensor,
    samples: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    B: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
) -> None:
    """`add_splits` for a training step: dA = weight * Q, dweight = diag(Q A^T), dbias = s, for one channel's row."""
    channel, columns = tl.program_id(0), tl.arange(0, WIDTH)
    row, own = _added(products, sums, channel, columns, C, splits, D, WIDTH, B)
    inside = columns < D
    if HAS_WEIGHT:
        tl.store(dweight + channel, tl.sum(row * tl.load(A + channel * D + columns, mask=inside, other=0.0), 0))
        row *= tl.load(weight + channel)
    tl.store(dA + channel * D + columns, row, mask=inside)
    tl.store(dbias + channel, own)
    tl.store(shift + channel, own / (samples * 1.0))


@triton.jit
def _vector(v: tl.tensor, channels: tl.tensor, inside: tl.tensor, EXISTS: tl.constexpr) -> tl.tensor:
    """Entries of v (C,), or zeros."""
    value = tl.zeros_like(channels).to(tl.float32)
    if EXISTS:
        value = tl.load(v + channels, mask=inside, other=0.0).to(tl.float32)
    return value


@triton.jit
def _centred(
    x: tl.tensor,
    offsets: tl.tensor,
    valid: tl.tensor,
    channels: tl.tensor,
    inside: tl.tensor,
    by_channel: tl.tensor,
    centre: tl.tensor,
    below: tl.tensor,
) -> tl.tensor:
    """x - mean - correction (J, K), before any product: after one a large mean would cost digits."""
    mask = inside[:, None] & valid[None, :]
    block = tl.load(rows_of(x, channels, by_channel) + offsets[None, :], mask=mask, other=0.0)
    return block.to(tl.float32) - centre[:, None] - below[:, None]


@triton.jit
def _times(
    acc: tl.tensor,  # (T, K)
    A: tl.tensor,
    x: tl.tensor,
    mean: tl.tensor,
    correction: tl.tensor,
    tile: tl.tensor,
    offsets: tl.tensor,
    valid: tl.tensor,
    by_channel: tl.tensor,
    C: tl.tensor,
    D: tl.constexpr,
    G: tl.constexpr,
    T: tl.constexpr,
    J: tl.constexpr,
    PRECISION: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    HAS_MEAN: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
) -> tl.tensor:
    """acc + A (x - mean - correction), J channels of x at a time: for tiles whose matrix does not fit into registers."""
    channels, inside = channels_of(tile, 0, C, D, G, T)
    for first in tl.static_range(0, T, J):
        column, column_in = channels_of(tile, first, C, D, G, J)
        matrix = block_of(A, channels, inside, column, column_in, D, TRANSPOSED)
        centre = _vector(mean, column, column_in, HAS_MEAN)
        below = _vector(correction, column, column_in, HAS_CORRECTION)
        block = _centred(x, offsets, valid, column, column_in, by_channel, centre, below)
        acc = tl.dot(matrix, block, acc, input_precision=PRECISION)
    return acc


@triton.jit
def transform(
    x: tl.tensor,
    y: tl.tensor,
    A: tl.tensor,
    mean: tl.tensor,
    correction: tl.tensor,
    bias: tl.tensor,
    C: tl.tensor,
    P: tl.tensor,
    samples: tl.tensor,
    by_image: tl.tensor,
    by_channel: tl.tensor,
    by_position: tl.tensor,
    y_by_image: tl.tensor,
    y_by_channel: tl.tensor,
    y_by_position: tl.tensor,
    chunk: tl.tensor,
    D: tl.constexpr,
    G: tl.constexpr,
    T: tl.constexpr,
    K: tl.constexpr,
    J: tl.constexpr,
    PRECISION: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    HAS_MEAN: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """y = A (x - mean - correction) + bias for the samples of one split."""
    tile, split = tl.program_id(0), tl.program_id(1)
    channels, inside = channels_of(tile, 0, C, D, G, T)
    added = _vector(bias, channels, inside, HAS_BIAS)
    if J == T:
        matrix = block_of(A, channels, inside, channels, inside, D, TRANSPOSED)
        centre = _vector(mean, channels, inside, HAS_MEAN)
        below = _vector(correction, channels, inside, HAS_CORRECTION)
    start = split * chunk
    end = start + tl.minimum(chunk, samples - start)
    for first in range(start, end, K):
        these = first + tl.arange(0, K)
        valid = these < end
        offsets = offsets_of(these, P, by_image, by_position)
        acc = tl.zeros((T, K), dtype=tl.float32)
        if J == T:
            block = _centred(x, offsets, valid, channels, inside, by_channel, centre, below)
            acc = tl.dot(matrix, block, acc, input_precision=PRECISION)
        else:
            acc = _times(
                acc, A, x, mean, correction, tile, offsets, valid, by_channel, C,
                D, G, T, J, PRECISION, TRANSPOSED, HAS_MEAN, HAS_CORRECTION,
            )  # fmt: skip
        acc += added[:, None]
        to = rows_of(y, channels, y_by_channel) + offsets_of(these, P, y_by_image, y_by_position)[None, :]
        tl.store(to, acc.to(y.dtype.element_ty), mask=inside[:, None] & valid[None, :])


@triton.jit
def combine(
    g: tl.tensor,
    x: tl.tensor,
    y: tl.tensor,
    A: tl.tensor,
    S: tl.tensor,
    mean: tl.tensor,
    correction: tl.tensor,
    shift: tl.tensor,
    C: tl.tensor,
    P: tl.tensor,
    samples: tl.tensor,
    g_by_image: tl.tensor,
    g_by_channel: tl.tensor,
    g_by_position: tl.tensor,
    by_image: tl.tensor,
    by_channel: tl.tensor,
    by_position: tl.tensor,
    y_by_image: tl.tensor,
    y_by_channel: tl.tensor,
    y_by_position: tl.tensor,
    chunk: tl.tensor,
    D: tl.constexpr,
    G: tl.constexpr,
    T: tl.constexpr,
    K: tl.constexpr,
    J: tl.constexpr,
    PRECISION: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
) -> None:
    """y = A^T (g - shift) + S (x - mean - correction) for the samples of one split."""
    tile, split = tl.program_id(0), tl.program_id(1)
    channels, inside = channels_of(tile, 0, C, D, G, T)
    if J == T:
        zero = tl.zeros_like(channels).to(tl.float32)
        for_g = block_of(A, channels, inside, channels, inside, D, True)
        for_x = block_of(S, channels, inside, channels, inside, D, False)
        g_centre = _vector(shift, channels, inside, True)
        centre = _vector(mean, channels, inside, True)
        below = _vector(correction, channels, inside, HAS_CORRECTION)
    start = split * chunk
    end = start + tl.minimum(chunk, samples - start)
    for first in range(start, end, K):
        these = first + tl.arange(0, K)
        valid = these < end
        g_offsets = offsets_of(these, P, g_by_image, g_by_position)
        offsets = offsets_of(these, P, by_image, by_position)
        acc = tl.zeros((T, K), dtype=tl.float32)
        if J == T:
            upper = _centred(g, g_offsets, valid, channels, inside, g_by_channel, g_centre, zero)
            block = _centred(x, offsets, valid, channels, inside, by_channel, centre, below)
            acc = tl.dot(for_g, upper, acc, input_precision=PRECISION)
            acc = tl.dot(for_x, block, acc, input_precision=PRECISION)
        else:
            acc = _times(
                acc, A, g, shift, correction, tile, g_offsets, valid, g_by_channel, C,
                D, G, T, J, PRECISION, True, True, False,
            )  # fmt: skip
            acc = _times(
                acc, S, x, mean, correction, tile, offsets, valid, by_channel, C,
                D, G, T, J, PRECISION, False, True, HAS_CORRECTION,
            )  # fmt: skip
        to = rows_of(y, channels, y_by_channel) + offsets_of(these, P, y_by_image, y_by_position)[None, :]
        tl.store(to, acc.to(y.dtype.element_ty), mask=inside[:, None] & valid[None, :])

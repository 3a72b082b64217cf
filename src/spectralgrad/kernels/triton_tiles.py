"""What the Triton code of moments and affine maps shares.

Every tile is (T, K): T channels, K samples. Rows beyond the tile's last group and columns beyond the program's last
sample hold 0. Products of a whole tile mix neighbouring groups; only the diagonal blocks are stored, or of a matrix loaded.
"""

# mypy: disable-error-code="import-untyped,import-not-found,untyped-decorator"
import triton
import triton.language as tl


@triton.jit
def offsets_of(samples: tl.tensor, P: tl.tensor, by_image: tl.tensor, by_position: tl.tensor) -> tl.tensor:
    """Where samples (K,) lie, before the channel is added. In 64 bits: one image may have more than 2^31 numbers."""
    return (samples // P).to(tl.int64) * by_image + (samples % P).to(tl.int64) * by_position


@triton.jit
def rows_of(x: tl.tensor, channels: tl.tensor, by_channel: tl.tensor) -> tl.tensor:
    """Where channels (T,) begin, as a column (T, 1)."""
    return x + (channels.to(tl.int64) * by_channel)[:, None]


@triton.jit
def channels_of(
    tile: tl.tensor, first: tl.tensor, C: tl.tensor, D: tl.constexpr, G: tl.constexpr, T: tl.constexpr
) -> tl.tensor:
    """T channels of a tile from its row ``first`` on, and which of them exist."""
    rows = first + tl.arange(0, T)
    channels = tile * (G * D) + rows
    return channels, (rows < G * D) & (channels < C)


@triton.jit
def block_of(
    A: tl.tensor,
    row: tl.tensor,
    row_in: tl.tensor,
    column: tl.tensor,
    column_in: tl.tensor,
    D: tl.constexpr,
    TRANSPOSED: tl.constexpr,
) -> tl.tensor:
    """Entries (row, column) of the block-diagonal matrix of A (groups, D, D), or of its transpose."""
    inside = row_in[:, None] & column_in[None, :] & ((row // D)[:, None] == (column // D)[None, :])
    where = row[:, None] * D + (column % D)[None, :]
    if TRANSPOSED:
        where = column[None, :] * D + (row % D)[:, None]
    return tl.load(A + where, mask=inside, other=0.0)


@triton.jit
def store_blocks(to: tl.tensor, value: tl.tensor, channels: tl.tensor, inside: tl.tensor, D: tl.constexpr) -> None:
    """The diagonal blocks of ``value`` (T, T) to ``to`` (C, D)."""
    same = inside[:, None] & inside[None, :] & ((channels // D)[:, None] == (channels // D)[None, :])
    tl.store(to + channels[:, None] * D + (channels % D)[None, :], value, mask=same)

"""Spectra and the vectors they stand in: what hostile matrices are built from."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

Spectrum = Callable[[int, int, Generator], Tensor]


def uniform(g: Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=g) * (high - low) + low


def tiny(g: Generator, *shape: int, decades: float = 17.0) -> Tensor:
    """10^-u, u uniform."""
    return 10 ** -uniform(g, *shape, high=decades)


# Spectra (B, n), not negative, largest about 1.


def separated(B: int, n: int, g: Generator) -> Tensor:
    return (torch.arange(1, n + 1) + uniform(g, B, n, low=-0.3, high=0.3)) / n


def ties(B: int, n: int, g: Generator) -> Tensor:
    return torch.randint(1, max(n // 2, 1) + 2, (B, n), generator=g).double() / 4


def near_ties(B: int, n: int, g: Generator) -> Tensor:
    w = separated(B, n, g)
    w[:, 1::2] = w[:, : n - n % 2 : 2] * (1 + tiny(g, B, 1))
    return w


def clusters(B: int, n: int, g: Generator) -> Tensor:
    centre = torch.randint(1, 3, (B, n), generator=g).double() / 2
    return centre * (1 + tiny(g, B, 1) * uniform(g, B, n))


def rank_deficient(B: int, n: int, g: Generator) -> Tensor:
    rank = torch.randint(0, n + 1, (B, 1), generator=g)
    return torch.where(torch.arange(n) < rank, separated(B, n, g), 0)


def tied_and_deficient(B: int, n: int, g: Generator) -> Tensor:
    rank = torch.randint(0, n + 1, (B, 1), generator=g)
    return torch.where(torch.arange(n) < rank, ties(B, n, g), 0)


def zero(B: int, n: int, g: Generator) -> Tensor:
    return torch.zeros(B, n, dtype=torch.float64)


def identity(B: int, n: int, g: Generator) -> Tensor:
    return torch.ones(B, n, dtype=torch.float64)


def graded(B: int, n: int, g: Generator) -> Tensor:
    decades = uniform(g, B, 1, high=40.0)
    return 10 ** (-decades * torch.linspace(0, 1, n, dtype=torch.float64))


def one_huge(B: int, n: int, g: Generator) -> Tensor:
    w = tiny(g, B, 1, decades=30) * uniform(g, B, n, low=0.5)
    w[:, 0] = 1
    return w


def one_tiny(B: int, n: int, g: Generator) -> Tensor:
    w = separated(B, n, g)
    w[:, :1] = tiny(g, B, 1, decades=30)
    return w


SPECTRA: dict[str, Spectrum] = {
    f.__name__.replace("_", " "): f
    for f in (
        separated,
        ties,
        near_ties,
        clusters,
        rank_deficient,
        tied_and_deficient,
        zero,
        identity,
        graded,
        one_huge,
        one_tiny,
    )
}


# Spectra with signs, for Hermitian matrices that need not be positive.


def plus_minus(B: int, n: int, g: Generator) -> Tensor:
    """l and -l, equal or nearly so."""
    w = near_ties(B, n, g)
    w[:, 1::2] *= -1
    return w


def exact_plus_minus(B: int, n: int, g: Generator) -> Tensor:
    return torch.randint(-2, 3, (B, n), generator=g).double()


def indefinite(B: int, n: int, g: Generator) -> Tensor:
    return torch.randn(B, n, dtype=torch.float64, generator=g)


def graded_signs(B: int, n: int, g: Generator) -> Tensor:
    return graded(B, n, g) * torch.where(uniform(g, B, n) < 0.5, -1.0, 1.0)


SIGNED: dict[str, Spectrum] = {
    f.__name__.replace("_", " "): f for f in (plus_minus, exact_plus_minus, indefinite, graded_signs)
}


# Vectors: (B, n, n), orthonormal.


def vectors(kind: str, B: int, n: int, g: Generator, is_complex: bool) -> Tensor:
    """Random, flat (all entries of one size), those of the axes, or a small turn of these."""
    dtype = torch.complex128 if is_complex else torch.float64
    if kind == "axes":
        places = uniform(g, B, n).argsort(-1)
        return torch.nn.functional.one_hot(places, n).to(dtype)
    if kind == "flat":
        signs = torch.where(uniform(g, B, n) < 0.5, -1.0, 1.0).to(dtype) / math.sqrt(n)
        reflected = torch.eye(n, dtype=dtype) - 2 * signs.unsqueeze(-1) * signs.unsqueeze(-2)
        if not is_complex:
            return reflected
        angle = torch.outer(torch.arange(n), torch.arange(n)).double() * (2 * math.pi / n)
        return torch.polar(torch.full_like(angle, 1 / math.sqrt(n)), angle) * (signs * math.sqrt(n)).unsqueeze(-1)
    entries = torch.randn(B, n, n, dtype=dtype, generator=g)
    if kind == "turned":
        entries = torch.eye(n, dtype=dtype) + tiny(g, B, 1, 1) * entries
    return torch.linalg.qr(entries)[0]


VECTORS = ("random", "flat", "axes", "turned")

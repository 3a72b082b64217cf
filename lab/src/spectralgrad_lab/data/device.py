"""Where a training or a transfer runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from spectralgrad.errors import OptionError


def torch_device(who: str, name: str) -> torch.device:
    """The device of a name: auto, cpu, cuda or cuda:N.

    Raises:
        OptionError: another name, or a GPU where there is none.

    >>> torch_device("train", "cpu")
    device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not (kind == "cuda" and number.isdigit())):
        raise OptionError(f"`{who}`: device must be auto, cpu, cuda or cuda:N, got {name!r}.")
    cuda = torch.cuda.is_available()
    if kind == "cuda" and not (cuda and int(number or 0) < torch.cuda.device_count()):
        raise OptionError(
            f"`{who}`: device {name}, but torch sees no GPU of that name here. Take device cpu, or install torch for CUDA."
        )
    return torch.device("cpu" if kind == "cpu" or not cuda else "cuda" if kind == "auto" else name)


@contextmanager
def convolutions(exact: bool = False) -> Iterator[None]:
    """Let cuDNN try its algorithms: the shapes of a training never change.

    ``exact``: what is left in float32 is not rounded to TF32. Under autocast that is the stem and what is decomposed; all
    other convolutions are in half precision.
    """
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.benchmark = True
    if exact:
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before

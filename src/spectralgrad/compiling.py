"""What torch.compile must know about a function, said without loading the compiler.

`torch.compiler.assume_constant_result` imports `torch._dynamo` to set one attribute, and that import takes ten times as
long as all of this library. So the attribute is set here. It has carried this meaning since torch 2.0; a test compares it
with what torch itself sets.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Marked = TypeVar("Marked", bound=Callable[..., Any])


def constant_when_compiled(function: Marked) -> Marked:
    """Let torch.compile call ``function`` while it traces and keep the result, as `torch.compiler.assume_constant_result`.

    For what depends on the process and not on a tensor: flags, the kind of device, the transforms at work. Dynamo does not
    look at it again, so somebody else must guard what it depends on.

    >>> @constant_when_compiled
    ... def answer() -> int:
    ...     return 42
    >>> answer()
    42
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_compiled
def is_exporting() -> bool:
    """`torch.compiler.is_exporting`, which torch 2.11's compiler takes for true wherever it meets it."""
    return torch.compiler.is_exporting()

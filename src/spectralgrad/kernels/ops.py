"""Functions that torch.compile takes as a whole.

Dynamo cannot look into a retry or a stopping test that depends on values, and would unroll every iteration. So a
function with either becomes one opaque operator while compiling, and stays the plain function everywhere else. The
operators have no gradient of their own: they are called only inside our autograd Functions.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_library = torch.library.Library("spectralgrad", "DEF")


def opaque(schema: str, fake: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function an operator under torch.compile.

    Args:
        schema: arguments and results in torch's schema language, with the operator's name in front.
        fake: the same with empty results; contiguous, as the operator's own must be.
    """
    name = schema.split("(")[0]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        _library.define(schema)
        _library.impl(name, _with_lazy_conjugates(function), "CompositeExplicitAutograd")
        torch.library.register_fake(f"spectralgrad::{name}", fake, lib=_library)
        operator = getattr(torch.ops.spectralgrad, name).default

        @wraps(function)
        def choose(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return operator(*args, **kwargs)  # type: ignore[no-any-return]
            return function(*args, **kwargs)

        return choose

    return decorate


def _with_lazy_conjugates(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` for a place where torch has switched lazy conjugates off.

    A compiled graph calls its operators below the dispatch keys that resolve them, and there every operation takes x.mH,
    which is a view with a mark, for x.mT: complex results would be wrong without a word. So the keys are put back.
    """

    @wraps(function)
    def resolving(*args: P.args, **kwargs: P.kwargs) -> R:
        excluded = torch._C._dispatch_tls_local_exclude_set()
        if not excluded.has(torch._C.DispatchKey.Conjugate):
            return function(*args, **kwargs)
        for key in (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
            excluded = excluded.remove(key)
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
            return function(*args, **kwargs)

    return resolving

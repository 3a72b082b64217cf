"""Where a decomposition was called: the user's file and line, and the module that was at work, by its name in the model."""

import sys
from types import FrameType
from typing import Any, NamedTuple

from torch.nn import Module

_OWN = ("torch.", "spectralgrad.")


class Place(NamedTuple):
    file: str
    line: int
    module: str | None  # as «model.head.pool»: the caller's name of the model, then the path in it


def place(depth: int = 1) -> Place:
    """Of the innermost frame that is neither torch's nor ours, ``depth`` frames out at least."""
    user: FrameType | None = None
    inner: Module | None = None
    outer: Module | None = None
    caller: FrameType | None = None  # of the outermost module
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        ours = f"{frame.f_globals.get('__name__', '')}.".startswith(_OWN)
        if user is None and not ours:
            user = frame
        module = frame.f_locals.get("self") if frame.f_code.co_argcount else None
        if isinstance(module, Module):
            inner, outer, caller = inner or module, module, None
        elif outer is not None and caller is None and not ours:
            caller = frame
        frame = frame.f_back
    user = user or sys._getframe(depth)
    name = None if inner is None or outer is None else _name(inner, outer, caller)
    return Place(user.f_code.co_filename, user.f_lineno, name)


def _name(inner: Module, outer: Module, caller: FrameType | None) -> str:
    known: dict[str, Any] = {} if caller is None else caller.f_locals
    root = next((name for name, value in known.items() if value is outer), type(outer).__name__)
    path = next((name for name, module in outer.named_modules() if module is inner), type(inner).__name__)
    return f"{root}.{path}" if path else root

"""Where modules of older versions went: an import of an old name raises an error that gives the new one.

`import spectralgrad.models`, `from spectralgrad.models.resnet import ResNet` and `from spectralgrad import models` end in a
finder, the last in `sys.meta_path`, after all that could find a module. `spectralgrad.models`, the attribute, ends in the
package's `__getattr__`.
"""

import sys
from collections.abc import Sequence
from types import ModuleType

_PACKAGE = "spectralgrad"
_LABORATORY = "spectralgrad_lab"
_INSTALL = "pip install spectralgrad-lab, in a checkout ./lab"
_MOVED = {  # a module of the library -> those of the laboratory
    "cli": ("cli",),
    "data": ("data",),
    "experiments": ("artifacts", "bench", "records", "style_network", "sweep", "training"),
    "files": ("files",),
    "models": ("models",),
    "report": ("report",),
    "style": ("style_network", "transfer"),
}


def announce() -> None:
    """From now on answer imports of moved modules; the package calls this when it is imported."""
    # Set here and not defined in the package: a type checker that sees a `__getattr__` believes in every name.
    sys.modules[_PACKAGE].__dict__["__getattr__"] = _missing_attribute
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def _sentence(name: str) -> str:
    *others, last = (f"{_LABORATORY}.{new}" for new in _MOVED[name])
    new = f"{', '.join(others)} and {last}" if others else last
    return f"{_PACKAGE}.{name} is now {new}, in the distribution spectralgrad-lab: {_INSTALL}."


def _missing_attribute(name: str) -> object:
    if name in _MOVED:
        raise AttributeError(_sentence(name), name=name)  # without its `obj` Python does not add a name that is near
    raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")


class _Finder:
    """Finds nothing; refuses the modules that moved."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        package, _, module = name.partition(".")
        if package == _PACKAGE and module in _MOVED:
            # `from spectralgrad import models` hides a ModuleNotFoundError that bears the name it looked for.
            raise ModuleNotFoundError(_sentence(module), name=f"{_LABORATORY}.{_MOVED[module][0]}")

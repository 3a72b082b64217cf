"""One direction of flow: a room imports only from rooms before it."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class House:
    """A package and its rooms, in the order of the flow.

    Args:
        package: its name.
        rooms: modules and packages right below it, the first ones first.
        allowed: what a room may import from outside, beside the standard library; a room that is not named may import
            anything.
        strangers: pairs of packages that do not know each other.
        forbidden: packages that no room may import.
    """

    package: str
    rooms: tuple[str, ...]
    allowed: dict[str, set[str]] = field(default_factory=dict)
    strangers: tuple[tuple[str, str], ...] = ()
    forbidden: tuple[str, ...] = ()

    def module_name(self, path: Path, root: Path) -> str:
        parts = [self.package, *path.relative_to(root).with_suffix("").parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def imported(self, path: Path, root: Path) -> Iterator[str]:
        """The full name of everything that a file imports, at the top, inside functions or for type checking."""
        module = self.module_name(path, root)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                source = ".".join([*above, *([node.module] if node.module else [])])
                yield from (f"{source}.{alias.name}" for alias in node.names)

    def room(self, name: str) -> str:
        """The room of a module of ours; "" for the package itself and for names in its public list."""
        top, _, rest = name.partition(".")
        second = rest.partition(".")[0]
        return second if top == self.package and second in self.rooms else ""

    def complaint(self, module: str, name: str, last_listed: int) -> str | None:
        """What is wrong with ``module`` importing ``name``."""
        here, top = self.room(module), name.partition(".")[0]
        if top in self.forbidden:
            return "which stands on us"
        if top != self.package:
            allowed = self.allowed.get(here)
            foreign = allowed is not None and top not in sys.stdlib_module_names | allowed
            return "neither torch nor the standard library" if foreign else None
        # Importing the package brings all that its __init__ imports: it belongs after the last of those.
        if (self.rooms.index(self.room(name)) if self.room(name) else last_listed + 0.5) > self.rooms.index(here):
            return "of a later room"
        pairs = [*self.strangers, *((b, a) for a, b in self.strangers)]
        return "a stranger" if any(is_inside(module, a) and is_inside(name, b) for a, b in pairs) else None

    def violations(self, root: Path) -> list[str]:
        """Every import under ``root`` that goes against the flow."""
        files = {path: list(self.imported(path, root)) for path in sorted(root.rglob("*.py"))}
        listed = [self.rooms.index(self.room(name)) for name in files.get(root / "__init__.py", []) if self.room(name)]
        found = []
        for path, names in files.items():
            module = self.module_name(path, root)
            if module in (self.package, f"{self.package}.__main__"):
                found += [f"{module} imports {name}, which stands on us" for name in names if is_any(name, self.forbidden)]
                continue
            if not self.room(module):
                found.append(f"{module} belongs to no room")
                continue
            for name in names:
                what = self.complaint(module, name, max(listed, default=-1))
                if what:
                    found.append(f"{module} imports {name}, {what}")
        return found


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def is_any(name: str, packages: tuple[str, ...]) -> bool:
    return any(is_inside(name, package) for package in packages)


def write(root: Path, files: dict[str, str]) -> None:
    """Files of a house for a test."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

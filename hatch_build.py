"""What building the package adds to its files.

The README as a package index shows it, with no repository around it: links into the repository become absolute.

The library of native kernels, where there is a C++ compiler: in a wheel, which then is one of this platform, or for an
editable install beside its sources. Without a compiler the package is pure Python and plain torch does that work.
SPECTRALGRAD_NATIVE=0 builds without; SPECTRALGRAD_NATIVE=PATH takes a library that is there already, for the platform of
SPECTRALGRAD_PLATFORM.
"""

import importlib.util
import os
import re
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)\s]+)\)")  # [text](path) and ![text](path), without a scheme


def absolute(text: str, repository: str) -> str:
    """``text`` with its relative links led to ``repository``: pages as they are shown there, pictures as files."""

    def lead(found: re.Match[str]) -> str:
        picture, label, path = found.groups()
        return f"{picture}{label}({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(lead, text)


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        if "readme" not in metadata:  # an unpacked sdist has it already, in its PKG-INFO
            text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            text = absolute(text, metadata["urls"]["Repository"])
            metadata["readme"] = {"content-type": "text/markdown", "text": text}


CPU = Path("src") / "spectralgrad" / "kernels" / "cpu"


def compiling(root: str) -> ModuleType:
    """The module that compiles the kernels, by itself: the package it belongs to needs torch."""
    spec = importlib.util.spec_from_file_location("spectralgrad_build", Path(root) / CPU / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Native(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        given = os.environ.get("SPECTRALGRAD_NATIVE", "")
        if self.target_name != "wheel" or given == "0":
            return
        build = compiling(self.root)
        if version == "editable":
            library, platform = Path(self.root) / CPU / build.NAME, ""
        else:
            self.folder = tempfile.TemporaryDirectory()
            library, platform = Path(self.folder.name) / build.NAME, os.environ.get("SPECTRALGRAD_PLATFORM", "")
        try:
            if given:
                library = Path(given)
            elif not build.is_current(library):
                build.build(library)
            platform = platform or build.platform_of(library)
        except build.NotBuilt as reason:
            self.app.display_warning(f"native kernels are left out, plain torch does their work: {reason}")
            return
        if version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            build_data["force_include"][str(library)] = str(CPU.relative_to("src") / library.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

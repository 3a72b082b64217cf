"""The README as a package index shows it, with no repository around it: links into the repository become absolute."""

import re
from pathlib import Path
from typing import Any

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

"""Write requirements.lock: the versions that are installed here, with the SHA-256 of every file of each version.

Run by `make lock`, with the Python of .venv. Of all files, so that a mirror with other wheels, another platform or a source
archive passes too. torch stands apart, by version, in constraints.txt: its builds differ by platform and index.
"""

import re
import sys
import urllib.request
from importlib import metadata
from pathlib import Path

import tomllib
from pip._internal.models.index import PyPI
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).parent.parent
APART = {"torch", "spectralgrad", "spectralgrad-lab"}
EXTRAS = ("test", "lint", "style")
LINK = re.compile(r'href="([^"#]+)#sha256=([0-9a-f]{64})"')
HEAD = "# Written by `make lock` for Python {}.{}, see .ci/lock.py. Install with --no-deps --require-hashes, after torch.\n"


def asked() -> list[str]:
    """What the two packages, their tests and their build need, as pyproject.toml says."""
    found = ["editables"]  # of an editable install
    for path in (ROOT / "pyproject.toml", ROOT / "lab" / "pyproject.toml"):
        told = tomllib.loads(path.read_text())
        found += told["build-system"]["requires"] + told["project"]["dependencies"]
        for name in EXTRAS:
            found += told["project"]["optional-dependencies"].get(name, [])
    return found


def installed(words: list[str]) -> dict[str, str]:
    """Name -> version of these and of all they need; what is needed only by another platform or extra is left out."""
    found: dict[str, str] = {}
    waiting = [*words, *(metadata.requires("torch") or [])]
    while waiting:
        need = Requirement(waiting.pop())
        name = canonicalize_name(need.name)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        if name in APART or name in found:
            continue
        found[name] = metadata.version(name)
        waiting += metadata.requires(name) or []
    return found


def hashes(name: str, version: str) -> list[str]:
    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/") as answer:  # the index that pip asks
        page = answer.read().decode()
    found = set()
    for link, digest in LINK.findall(page):
        file = link.rpartition("/")[2].replace("%2B", "+")
        try:
            parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
            if str(parse(file)[1]) == version:
                found.add(digest)
        except ValueError:  # an old kind of archive
            continue
    return sorted(found)


def main() -> int:
    lines = [HEAD.format(*sys.version_info)]
    for name, version in sorted(installed(asked()).items()):
        found = hashes(name, version)
        if not found:
            print(f"lock: the index has no hashes of {name} {version}")
            return 1
        lines.append(f"{name}=={version} \\\n" + " \\\n".join(f"    --hash=sha256:{digest}" for digest in found) + "\n")
    (ROOT / "requirements.lock").write_text("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

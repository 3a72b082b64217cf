"""Build, check and measure what is released: the sdist and the wheel of both packages. `make dist` runs this.

All is built and tried in .make/dist, and put into dist/ only when every check has passed. Nothing is fetched: hatchling,
build, twine and what the packages need are installed already.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from lock import ROOT, installed

WORK = ROOT / ".make" / "dist"
DIST = ROOT / "dist"
ARCHIVE = re.compile(r"spectralgrad(_lab)?-[^-]+(-py3-none-\w+\.whl|\.tar\.gz)")
ADDED = {"PKG-INFO", ".gitignore"}  # by hatchling, to an sdist
LIBRARY = re.compile(r"spectralgrad/kernels/cpu/native\.\w+")  # of native kernels, compiled for a wheel


class Refused(Exception):
    """Something that stands against a release, in words for who makes it."""


@dataclass(frozen=True)
class Package:
    """A package: the folder of its pyproject.toml, and what its sdist must hold, all of it."""

    name: str
    folder: str  # from the root, "" or with a slash at its end
    holds: tuple[str, ...]

    def wanted(self, tracked: set[str]) -> tuple[set[str], set[str]]:
        """Of the files that git knows: those of the sdist that must be there, and those of the wheel, all of them."""
        ours = {path.removeprefix(self.folder) for path in tracked if path.startswith(self.folder)}
        source = {path for path in ours if path.startswith(self.holds)}
        inside = {path.removeprefix("src/") for path in ours if path.startswith(f"src/{self.name}/")}
        return source, inside


PACKAGES = (
    Package(
        "spectralgrad",
        "",
        ("src/", "tests/", "docs/", "examples/", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "NOTICE"),
    ),
    Package("spectralgrad_lab", "lab/", ("src/", "tests/", "README.md", "LICENSE", "NOTICE")),
)


def called(*command: object, where: Path | None = None) -> str:
    """What a command printed, without its colours; one that fails stands against a release."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=where or ROOT, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode:
        raise Refused(f"`{' '.join(words)}` failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def git(*words: str) -> str:
    return called("git", *words)


def require_clean() -> None:
    """What is built is what is committed, unless DIRTY says otherwise."""
    changed = git("status", "--porcelain").splitlines()
    if changed and not os.environ.get("DIRTY"):
        shown = "\n".join(changed[:10] + (["..."] if len(changed) > 10 else []))
        raise Refused(
            f"the tree differs from its commit:\n{shown}\nCommit or stash that, or build it all the same: make dist DIRTY=1"
        )


def files_of(archive: Path) -> set[str]:
    """The files in a wheel or an sdist; those of an sdist without its own folder. A link is refused, as pip refuses it."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as sdist:
        members = sdist.getmembers()
    links = [member.name for member in members if not (member.isfile() or member.isdir())]
    if links:
        raise Refused(f"{archive.name}: {links} are links, which cannot be unpacked elsewhere. Commit the files themselves.")
    return {member.name.partition("/")[2] for member in members if member.isfile()}


def compare(archive: Path, package: Package, tracked: set[str]) -> None:
    """An archive holds all it should, and nothing that git does not know."""
    source, inside = package.wanted(tracked)
    found = files_of(archive)
    if archive.suffix == ".whl":
        found = {path for path in found if ".dist-info/" not in path and not LIBRARY.fullmatch(path)}
        missing, strange = inside - found, found - inside
    else:
        missing, strange = source - found, {p for p in found if f"{package.folder}{p}" not in tracked} - ADDED
    for what, paths in (("lacks", missing), ("holds files that git does not know:", strange)):
        if paths and not (os.environ.get("DIRTY") and paths is strange):
            raise Refused(f"{archive.name} {what} {', '.join(sorted(paths)[:5])}{' ...' if len(paths) > 5 else ''}")


def build(package: Package, into: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel made from it, as who installs the sdist would make it."""
    called(sys.executable, "-m", "build", "--no-isolation", "--outdir", into, ROOT / package.folder)
    sdist, wheel = (next(into.glob(f"{package.name}-*{end}")) for end in (".tar.gz", ".whl"))
    return sdist, wheel


def environment(folder: Path, wheels: list[Path]) -> Path:
    """A new environment with the wheels and what they ask for, no more. Returns its Python.

    What they ask for is linked from the environment that runs this, so that nothing is fetched and a dependency that nobody
    declared is missing.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    called(*pip, "install", "--no-index", "--no-deps", *wheels)
    site = next(folder.glob("lib/python*/site-packages"))
    asked = [word for path in site.glob("*.dist-info") for word in metadata.Distribution.at(path).requires or []]
    for name in ("torch", *installed(asked)):
        told = metadata.distribution(name)
        for top in {file.parts[0] for file in told.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(told.locate_file(top))).resolve())
    called(*pip, "check")
    return python


def tried(python: Path, package: str, *commands: tuple[object, ...]) -> None:
    """Run the doctests of the installed package and its commands, far from the repository; print the last line of each."""
    away = python.parent.parent / "away"
    away.mkdir()
    for command in ((python, "-I", ROOT / ".ci" / "doctests.py", package), *commands):
        last = called(*command, where=away).strip().splitlines()[-1]
        print(f"  {' '.join(Path(str(word)).name for word in command)}: {last}", flush=True)


def publish(archives: list[Path]) -> None:
    """Into dist/, in the place of those of the last time; files that are not ours stay."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.iterdir():
        if ARCHIVE.fullmatch(old.name):
            old.unlink()
    for path in archives:
        data = path.replace(DIST / path.name).read_bytes()
        print(f"dist/{path.name:40s} {len(data) / 1e6:7.2f} MB  sha256 {hashlib.sha256(data).hexdigest()}")


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        require_clean()
        tracked = set(git("ls-files").splitlines())
        archives = []
        for package in PACKAGES:
            print(f"building {package.name}", flush=True)
            pair = build(package, WORK)
            for archive in pair:
                compare(archive, package, tracked)
            archives += pair
        called(sys.executable, "-m", "twine", "check", "--strict", *archives)
        print("twine check passed; trying the wheels in empty environments", flush=True)
        library, laboratory = archives[1], archives[3]
        alone = environment(WORK / "library", [library])
        tried(alone, "spectralgrad", (alone, "-I", "-m", "spectralgrad"))
        both = environment(WORK / "laboratory", [library, laboratory])
        command = both.parent / "spectralgrad"
        tried(both, "spectralgrad_lab", (command, "--version"))
        called(command, "list", where=WORK)
        publish(archives)
    except Refused as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

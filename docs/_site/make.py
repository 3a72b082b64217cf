"""Build the site: `make docs`, or python docs/_site/make.py [FOLDER]. Needs the packages of the extra `docs`, no network.

Strict: a warning or a dead link is an error, and then the site that was there stays as it was. Only FOLDER is written.
"""

import argparse
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = {
    "sphinx": "sphinx",
    "myst_parser": "myst-parser",
    "furo": "furo",
    "latex2mathml": "latex2mathml",
    "ziamath": "ziamath",
    "fontTools": "fonttools",
}
MARK = "spectralgrad-site"  # a file that says that the folder is ours, and may be replaced
sys.path.insert(0, str(HERE))


def build(docs: Path, folder: Path) -> str:
    """Build the pages of ``docs`` into ``folder``; returns what is wrong, or ""."""
    if sys.version_info < (3, 11):
        return "the site needs Python 3.11 or newer, as Sphinx does: make docs PYTHON=python3.11, after make clean"
    missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
    if missing:
        return f"not installed: {', '.join(missing)}. Run `make docs` with a network once, or pip install -e '.[docs]'"
    if folder.exists() and not (folder / MARK).exists() and (folder.is_file() or any(folder.iterdir())):
        return f"{folder} was not made by this command, and is not empty: name another folder, or remove it"
    from parts.links import dead
    from sphinx.cmd.build import build_main

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
        new, doctrees = Path(name) / "new", Path(name) / "doctrees"
        if build_main(["-W", "--keep-going", "-q", "-b", "html", "-d", str(doctrees), "-c", str(HERE), str(docs), str(new)]):
            return "there were warnings, see above; nothing was replaced"
        if found := dead(new):
            return "\n".join(["dead links; nothing was replaced:", *found])
        (new / ".buildinfo").unlink()  # of an incremental build
        (new / MARK).touch()
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "site")
    parser.add_argument("--docs", type=Path, default=HERE.parent, help="the folder of the pages")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if wrong := build(given.docs.resolve(), folder):
        print(f"docs: {wrong}", file=sys.stderr)
        return 1
    print(f"docs: {len(list(folder.rglob('*.html')))} pages in {folder}: open {folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What is released: one version, one address, archives that hold what they should; `make dist` refuses the rest."""

import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import import_module, util
from pathlib import Path
from types import ModuleType

import pytest

import spectralgrad as sg

ROOT = Path(__file__).parent.parent
if not (ROOT / ".ci").exists():
    pytest.skip("an unpacked sdist: releases are made in the repository", allow_module_level=True)
tomllib = pytest.importorskip("tomllib", reason="make dist needs Python 3.11")
pytest.importorskip("hatchling")


def load(path: str) -> ModuleType:
    spec = util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks there
    spec.loader.exec_module(module)
    return module


dist = load(".ci/dist.py")


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def known() -> set[str]:
    """The files of this tree that git knows or would add."""
    paths = dist.git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    return {path for path in paths if (ROOT / path).exists()}


def test_one_version() -> None:
    assert f'"spectralgrad=={sg.__version__}"' in text("lab/pyproject.toml")
    assert re.findall(r"^version: (.+)$", text("CITATION.cff"), re.MULTILINE) == [sg.__version__]
    newest = re.search(r"^## \[(.+?)\]", text("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == sg.__version__


def test_one_address() -> None:
    address = tomllib.loads(text("pyproject.toml"))["project"]["urls"]["Repository"].partition("://")[2].encode()
    holders = {path for path in known() if address in (ROOT / path).read_bytes()}
    assert holders == {"pyproject.toml"}


def test_the_laboratory_has_the_licence_itself() -> None:
    assert text("lab/LICENSE") == text("LICENSE")
    assert not (ROOT / "lab" / "LICENSE").is_symlink()


def test_five_papers_are_cited() -> None:
    titles = set(re.findall(r'^    title: "?(.+?)"?$', text("CITATION.cff"), re.MULTILINE))
    assert titles == {
        "PCA Denoising Layer",
        "Backpropagation-Friendly Eigendecomposition",
        "Backpropagation-Friendly Eigendecomposition (poster)",
        "Robust Differentiable SVD",
        "Improving Covariance Conditioning of the SVD Meta-layer by Orthogonality",
    }


def test_an_index_gets_absolute_links() -> None:
    absolute = load("hatch_build.py").absolute
    page = "[a](docs/a.md) ![b](docs/b.svg) [c](https://c.d/e) [f](#part) `x[i](j.k)`"
    assert absolute("[a](docs/a.md)", "R") == "[a](R/blob/main/docs/a.md)"
    assert absolute(page, "https://r").startswith("[a](https://r/blob/main/docs/a.md) ![b](https://r/raw/main/docs/b.svg) ")
    assert "[c](https://c.d/e) [f](#part)" in absolute(page, "https://r")
    assert not re.search(r"\]\((?!https?://|#)", absolute(text("README.md"), "https://r"))


@pytest.mark.parametrize("package", dist.PACKAGES, ids=lambda package: package.name)
def test_archives_hold_what_they_should(package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTRALGRAD_NATIVE", "0")
    root = str(ROOT / package.folder)
    for kind in ("sdist", "wheel"):
        builder = getattr(import_module(f"hatchling.builders.{kind}"), f"{kind.capitalize()}Builder")
        (archive,) = builder(root).build(directory=str(tmp_path), versions=["standard"])
        dist.compare(Path(archive), package, known())
        assert f"{package.name}-{sg.__version__}" in archive
        assert dist.ARCHIVE.fullmatch(Path(archive).name)


def wheel_of_the_library(folder: Path) -> str:
    builder = import_module("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    (wheel,) = builder.build(directory=str(folder), versions=["standard"])
    return str(wheel)


def test_a_wheel_with_native_kernels_is_of_a_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "native.so"
    library.write_bytes(b"\x7fELF GLIBC_2.5 GLIBC_2.29 GLIBC_2.4")
    monkeypatch.setenv("SPECTRALGRAD_NATIVE", str(library))
    monkeypatch.setenv("SPECTRALGRAD_PLATFORM", "macosx_11_0_arm64")
    wheel = wheel_of_the_library(tmp_path)
    assert wheel.endswith("-py3-none-macosx_11_0_arm64.whl")
    assert dist.ARCHIVE.fullmatch(Path(wheel).name)
    with zipfile.ZipFile(wheel) as held:
        assert held.read("spectralgrad/kernels/cpu/native.so") == library.read_bytes()
        (tags,) = (held.read(name) for name in held.namelist() if name.endswith("/WHEEL"))
    assert b"Root-Is-Purelib: false" in tags
    dist.compare(Path(wheel), dist.PACKAGES[0], known())
    build = load("src/spectralgrad/kernels/cpu/build.py")
    if sys.platform == "linux":
        assert "manylinux_2_29_" in build.platform_of(library)


def test_without_a_compiler_a_wheel_is_of_any_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECTRALGRAD_NATIVE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert wheel_of_the_library(tmp_path).endswith("-py3-none-any.whl")


TRACKED = {"src/spectralgrad/a.py", "tests/t.py", "lab/src/spectralgrad_lab/b.py"}


def sdist(folder: Path, *names: str, link: str | None = None) -> Path:
    path = folder / "spectralgrad-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"spectralgrad-1/{name}"))
        if link:
            member = tarfile.TarInfo(f"spectralgrad-1/{link}")
            member.type, member.linkname = tarfile.SYMTYPE, "../x"
            archive.addfile(member)
    return path


def test_a_faulty_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIRTY", raising=False)
    library = dist.PACKAGES[0]
    whole = ("src/spectralgrad/a.py", "tests/t.py", "PKG-INFO")
    dist.compare(sdist(tmp_path, *whole), library, TRACKED)
    for names, link, message in (
        (whole[:1], None, r"lacks tests/t\.py"),
        ((*whole, "secret.txt"), None, r"does not know: secret\.txt"),
        (whole, "LICENSE", "LICENSE'] are links"),
    ):
        with pytest.raises(dist.Refused, match=message):
            dist.compare(sdist(tmp_path, *names, link=link), library, TRACKED)
    wheel = tmp_path / "spectralgrad-1-py3-none-any.whl"
    for names, message in (((), "lacks spectralgrad/a.py"), (("spectralgrad/a.py", "tests/t.py"), "tests/t.py")):
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in names:
                archive.writestr(name, "")
        with pytest.raises(dist.Refused, match=message):
            dist.compare(wheel, library, TRACKED)


def test_a_tree_with_changes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.delenv("DIRTY", raising=False)
    for name, place in (("ROOT", tmp_path), ("WORK", tmp_path / ".make" / "dist"), ("DIST", tmp_path / "dist")):
        monkeypatch.setattr(dist, name, place)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    dist.require_clean()
    (tmp_path / "new.py").touch()
    assert dist.main() == 1
    assert "?? new.py" in (told := capsys.readouterr().err)
    assert "make dist DIRTY=1" in told
    assert {path.name for path in tmp_path.iterdir()} == {".git", ".make", "new.py"}  # no dist
    monkeypatch.setenv("DIRTY", "1")
    dist.require_clean()


def test_old_archives_are_replaced_and_other_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(dist, "DIST", tmp_path / "dist")
    dist.DIST.mkdir()
    for name in ("spectralgrad-0.0.9.tar.gz", "spectralgrad_lab-0.0.9-py3-none-any.whl", "mine.txt"):
        (dist.DIST / name).touch()
    dist.publish([sdist(tmp_path, "a")])
    assert {path.name for path in dist.DIST.iterdir()} == {"spectralgrad-1.tar.gz", "mine.txt"}
    assert re.search(r"spectralgrad-1\.tar\.gz +0\.00 MB  sha256 [0-9a-f]{64}", capsys.readouterr().out)


def test_doctests_of_the_repository_are_not_those_of_the_wheel(tmp_path: Path) -> None:
    package = tmp_path / "elsewhere"
    package.mkdir()
    (package / "__init__.py").touch()
    path = [str(tmp_path), str(ROOT / ".ci")]
    code = f"import sys; sys.path[:0] = {path}; import doctests; print(doctests.main('elsewhere'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "not from the environment" in done.stdout
    assert done.stdout.endswith("1\n")


@pytest.mark.slow
def test_make_dist_twice_gives_the_same_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("build", "twine"):
        pytest.importorskip(name)
    monkeypatch.setenv("DIRTY", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # nothing is fetched
    monkeypatch.setattr(dist, "WORK", tmp_path / "work")
    found = []
    for turn in ("first", "second"):
        monkeypatch.setattr(dist, "DIST", tmp_path / turn)
        assert dist.main() == 0
        found.append({path.name: path.read_bytes() for path in dist.DIST.iterdir()})
    assert len(found[0]) == 4
    assert found[0] == found[1]


def test_a_tag_is_the_version_and_has_a_date() -> None:
    refusal = load(".ci/tag.py").refusal
    source, dated = '__version__ = "1.2.0"\n', "## [1.2.0] - 2027-01-31\n"
    assert refusal("v1.2.0", source, dated) is None
    assert "a tag is v and the version" in refusal("v1.2.1", source, dated)
    assert "a tag is v and the version" in refusal("", source, dated)
    assert "has no line" in refusal("v1.2.0", source, "## [1.2.0] - not released yet\n")
    assert "has no line" in refusal("v1.2.0", source, "## [1x2.0] - 2027-01-31\n")

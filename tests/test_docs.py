"""Every Python example in the documentation runs, every link leads somewhere, and the mathematics survives Markdown."""

import json
import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import spectralgrad as sg

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
INDEX = ROOT / "docs" / "README.md"
OTHERS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "lab/README.md")
PAGES = [*DOCS, *(ROOT / name for name in OTHERS if (ROOT / name).exists())]  # an sdist has no lab

SKIP = "<!-- no-run -->"
NEEDS = re.compile(r"<!-- needs: (\w+) -->")
MATH = re.compile(r"\$\$.+?\$\$|\$[^$\n]+?\$", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)\s]*\)")


@dataclass(frozen=True)
class Fence:
    """A fenced block: its language, the line of its first line of code, the code, whether to run it, what it needs."""

    language: str
    line: int
    code: str
    runs: bool
    needs: str | None = None


def fences(text: str) -> list[Fence]:
    """All fenced blocks of a page. One that is never closed is an error: GitHub would swallow the rest of the page."""
    found: list[Fence] = []
    opened: tuple[str, int, bool, str | None] | None = None
    code: list[str] = []
    last = ""  # the last line that is not blank
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if opened is None and stripped.startswith("```"):
            need = NEEDS.fullmatch(last)
            opened, code = (stripped[3:].split(" ")[0], number + 1, last != SKIP, need and need[1]), []
        elif opened is not None and stripped == "```":
            language, start, runs, needs = opened
            found.append(Fence(language, start, "\n".join(code) + "\n", runs, needs))
            opened = None
        elif opened is not None:
            code.append(line)
        last = stripped or last
    if opened is not None:
        raise ValueError(f"the fence opened above line {opened[1]} is never closed")
    return found


def python(text: str) -> list[Fence]:
    return [fence for fence in fences(text) if fence.language == "python" and fence.runs]


def run(text: str, name: str, package: str | None = None) -> dict[str, Any]:
    """Run a page's examples one after the other in one namespace. Tracebacks point at the page's own lines.

    Those that need a package are left out, but for ``package``.
    """
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for fence in python(text):
        if fence.needs not in (None, package):
            continue
        exec(compile("\n" * (fence.line - 1) + fence.code, name, "exec"), namespace)
    return namespace


def prose(text: str) -> str:
    """The page without its fenced blocks and inline code."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def ident(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_in(folder: Path, monkeypatch: pytest.MonkeyPatch, page: Path, package: str | None = None) -> None:
    monkeypatch.chdir(folder)  # an example that writes a file writes it there
    sg.reset_counts()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        run(page.read_text(), str(page), package)


WITH_PACKAGE = [
    pytest.param(page, fence.needs, id=f"{ident(page)}-{fence.needs}")
    for page in PAGES
    for fence in python(page.read_text())
    if fence.needs
]


@pytest.mark.parametrize(("page", "package"), WITH_PACKAGE)
def test_examples_with_a_package_run(page: Path, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the package
        run_in(tmp_path, monkeypatch, page, package)


@pytest.mark.parametrize("page", [page for page in PAGES if python(page.read_text())], ids=ident)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any("spectralgrad_lab" in fence.code for fence in python(page.read_text())):
        pytest.importorskip("spectralgrad_lab", reason="needs the laboratory")
    run_in(tmp_path, monkeypatch, page)


ROOT_OF_EVIDENCE = "root = Path(spectralgrad_lab.__file__).parents[3]"


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="an unpacked sdist: no results/, no lab/")
@pytest.mark.parametrize("change", ["nothing", "a failure", "an error", "a cell of the README"])
def test_a_changed_record_makes_the_evidence_fail(change: str, tmp_path: Path) -> None:
    """Its example, on a copy of the records, the page and the README."""
    pytest.importorskip("spectralgrad_lab", reason="needs the laboratory")
    for name in ("laboratory-h200", "laboratory-cpu", "style-h200"):
        shutil.copytree(ROOT / "results" / name, tmp_path / "results" / name)
    (tmp_path / "docs").mkdir()
    for file in ("docs/evidence.md", "README.md"):
        shutil.copy(ROOT / file, tmp_path / file)
    trial = {"a failure": '"method": "svd", "d": 4,', "an error": '"method": "taylor", "d": 64,'}.get(change)
    of_table4 = (path for path in (tmp_path / "results" / "laboratory-h200" / "trials").glob("*.jsonl") if trial)
    for path in of_table4:
        text = path.read_text()
        if str(trial) in text and '"epochs": 8,' in text and '"seed": 0,' in text:
            head, _, end = text.rstrip().rpartition("\n")
            changed = {**json.loads(end), **({"status": "failed"} if change == "a failure" else {"test_error": 15.0})}
            path.write_text(f"{head}\n{json.dumps(changed)}\n")
    if change == "a cell of the README":
        (tmp_path / "README.md").write_text((tmp_path / "README.md").read_text().replace("| 0 of 4 in 8", "| 1 of 4 in 8"))
    page = (ROOT / "docs" / "evidence.md").read_text()
    assert page.count(ROOT_OF_EVIDENCE) == 1
    copied = page.replace(ROOT_OF_EVIDENCE, f"root = Path({str(tmp_path)!r})")
    if change == "nothing":
        run(copied, "a copy of docs/evidence.md")
    else:
        with pytest.raises(AssertionError, match=r"must have: |README\.md: "):
            run(copied, "a copy of docs/evidence.md")


@pytest.mark.parametrize("page", [page for page in DOCS if page != INDEX], ids=ident)
def test_page_has_an_example_and_stands_in_the_index(page: Path) -> None:
    assert python(page.read_text())
    assert str(page.relative_to(INDEX.parent)) in LINK.findall(INDEX.read_text())


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="an unpacked sdist: no results/, no lab/")
@pytest.mark.parametrize("page", PAGES, ids=ident)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(prose(page.read_text())) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


MAKEFILE = ROOT / "Makefile"


@pytest.mark.skipif(not MAKEFILE.exists(), reason="an unpacked sdist")
def test_make_help_has_every_target_and_pages_name_no_other() -> None:
    targets = set(re.findall(r"^\.PHONY: (.+)$", MAKEFILE.read_text(), re.MULTILINE)[0].split())
    assert set(re.findall(r'^\t@echo "make ([\w-]+) ', MAKEFILE.read_text(), re.MULTILINE)) == targets - {"help"}
    texts = [page.read_text() for page in PAGES]
    shell = [fence.code for text in texts for fence in fences(text) if fence.language in ("sh", "bash", "")]
    named = {name for text in texts for name in re.findall(r"`make ([\w-]+)", text)}
    named |= {name for code in shell for name in re.findall(r"^make ([\w-]+)", code, re.MULTILINE)}
    assert named <= targets
    assert {"test", "docs", "help"} <= named


# Markdown reads the text before the mathematics does. It takes a backslash before punctuation for its own, so that `\,`
# arrives as `,`; an underscore after punctuation may open emphasis; and a bar ends a table's cell.
MANGLED = {
    "backslash before punctuation": re.compile(r"\\[^A-Za-z\s]"),
    "underscore after punctuation": re.compile(r"(?<=[^\w\s])_"),
    "star": re.compile(r"\*"),
    "bar": re.compile(r"\|"),
    "looks like a link": re.compile(r"\]\("),
}


def mangled(text: str) -> list[str]:
    return [
        f"{what}: {formula}"
        for formula in MATH.findall(prose(text))
        for what, pattern in MANGLED.items()
        if pattern.search(formula)
    ]


@pytest.mark.parametrize("page", PAGES, ids=ident)
def test_mathematics_survives_markdown(page: Path) -> None:
    assert mangled(page.read_text()) == []
    assert prose(page.read_text()).count("$") == sum(formula.count("$") for formula in MATH.findall(prose(page.read_text())))


# Controls: the tests above must be able to fail.


def page(*lines: str) -> str:
    return "\n".join(lines)


def test_fences_share_a_namespace_and_a_failing_one_fails() -> None:
    shared = page("```python", "x = 1", "```", "text", "```python", "y = x + 1", "```")
    assert run(shared, "shared")["y"] == 2
    with pytest.raises(ZeroDivisionError) as caught:
        run(page("text", "", "```python", "1 / 0", "```"), "failing")
    assert caught.traceback[-1].lineno == 3  # the fourth line of the page


def test_only_marked_fences_and_other_languages_are_skipped() -> None:
    marked = page(SKIP, "", "```python", "1 / 0", "```")
    assert len(fences(marked)) == 1
    assert not python(marked)
    assert [fence.language for fence in fences(page("```bash", "exit 1", "```"))] == ["bash"]
    assert not python(page("```bash", "exit 1", "```"))
    after = page(SKIP, "```python", "1 / 0", "```", "```python", "x = 1", "```")
    assert [fence.code for fence in python(after)] == ["x = 1\n"]


def test_a_fence_with_a_package_runs_for_that_package_alone() -> None:
    needy = page(
        "```python", "x = 1", "```", "<!-- needs: that -->", "```python", "x = 2", "```", "```python", "y = x", "```"
    )
    assert run(needy, "needy")["y"] == run(needy, "needy", "other")["y"] == 1
    assert run(needy, "needy", "that")["y"] == 2


def test_an_open_fence_is_an_error() -> None:
    with pytest.raises(ValueError, match="never closed"):
        fences(page("```python", "x = 1"))


@pytest.mark.parametrize("formula", [r"$a\,b$", r"$\hat{K}_{ij}$", "$a * b$", r"$\|x\|$", "$$f[a](b)$$"])
def test_mangled_mathematics_is_found(formula: str) -> None:
    assert mangled(f"text {formula} text")
    assert not mangled(r"text $\hat K_{ij} \le \lVert x \rVert_F$ and `$a\,b$`")

"""The site: every public name has its place, every page stands in the navigation, and what is built has no dead link."""

import doctest
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from parts import docstrings, examples, links, mathml, navigation, reference

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MAKE = DOCS / "_site" / "make.py"
PAGES = sorted(str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md"))
PUBLIC = reference.public()
DOCUMENTED = {name: page for page in DOCS.rglob("*.md") for name in reference.names(page.read_text())}
needs_sphinx = pytest.mark.skipif(find_spec("sphinx") is None, reason="needs the packages of the extra docs")


def is_error(name: str) -> bool:
    found = reference.find(name)
    return inspect.isclass(found) and issubclass(found, BaseException)


# The reference.


def test_the_reference_has_every_public_name_once() -> None:
    told = [name for page in sorted(DOCS.rglob("*.md")) for name in reference.names(page.read_text())]
    assert sorted(told) == sorted(PUBLIC)
    assert {"spectralgrad.eigh", "spectralgrad.nn.functional.whiten", "spectralgrad.errors.ShapeError"} < set(told)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "spectralgrad.errors.LinAlgError"])
def test_a_public_name_says_what_it_computes_and_has_an_example(name: str) -> None:
    """LinAlgError is torch's own. Errors need no example; what each means is a sentence."""
    said = inspect.getdoc(reference.find(name)) or ""
    first = " ".join(said.split("\n\n")[0].split())
    assert re.match(r".{15,}[.:)]", first), first
    assert is_error(name) or ">>> " in said


@pytest.mark.parametrize("name", [name for name in PUBLIC if not is_error(name)])
def test_a_public_name_has_its_row_of_formulas(name: str) -> None:
    """In the table of its page; a family like `DecorrelatedBatchNorm1d/2d/3d` shares one."""
    rows = [line for line in DOCUMENTED[name].read_text().splitlines() if line.startswith("| `")]
    last = name.rpartition(".")[2]
    family = re.sub(r"[123]d$", "", last)
    assert any(re.search(rf"`[\w.]*\b({last}\b|{family}[123]d/)", row) for row in rows)


# The navigation.


def test_the_navigation_has_every_page_once() -> None:
    found = navigation.sections((DOCS / "README.md").read_text())
    assert sorted(page for pages in found.values() for page in pages) == PAGES
    assert next(iter(found.values()))[0] == "index"


def test_a_page_that_is_not_listed_is_missed() -> None:
    text = (DOCS / "README.md").read_text().replace("| [speed.md](speed.md) |", "| speed |")
    assert "speed" not in [page for pages in navigation.sections(text).values() for page in pages]
    assert ":caption: Start\n\nself\nchoosing\n" in navigation.toctrees((DOCS / "README.md").read_text(), "index")


# Links to headings: test_docs.py holds that the files exist.


def anchors(text: str) -> set[str]:
    """Of the headings of a page, as a forge makes them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, "../README", "../CONTRIBUTING"])
def test_links_to_headings_lead_to_one(page: str) -> None:
    path = DOCS / f"{page}.md"
    for target, heading in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", path.read_text()):
        assert heading in anchors((path.parent / target if target else path).read_text()), f"{target}#{heading}"


def test_a_heading_is_named_as_on_a_forge() -> None:
    assert anchors("# The rule: `gradient=`\n\n```\n# no heading\n```\n## Value checks") == {
        "the-rule-gradient",
        "value-checks",
    }


# The README.


def test_the_readme_is_short_and_its_tables_can_be_replaced() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    for name in ("speed", "evidence"):
        inside = re.findall(
            rf"^<!-- readme:{name} -->$\n(.+?)^<!-- /readme:{name} -->$", text, flags=re.DOTALL | re.MULTILINE
        )
        assert len(inside) == 1
        assert 3 <= sum(line.startswith("|") for line in inside[0].splitlines()) <= 10


def test_the_readme_says_of_speed_what_the_page_says() -> None:
    """Its lines are lines of the page's table of the CPU, figures rounded to two digits, with their targets."""
    page = (DOCS / "speed.md").read_text()
    full = table(page[page.index("<!-- bench:cpu -->") : page.index("<!-- /bench:cpu -->")])
    text = (ROOT / "README.md").read_text()
    short = table(text.split("readme:speed -->")[1])
    assert len(short) >= 12
    works = {work for work, _ in short}
    assert set(short) == {(work, column) for work, column in full if work in works}  # no column is left out
    for place, cell in short.items():
        figure, _, target = full[place].partition(" ")
        assert cell == f"{float(figure):.2g} {target}".strip()
    assert any("missed" in cell for cell in short.values()) or not any("missed" in cell for cell in full.values())


def table(text: str) -> dict[tuple[str, str], str]:
    """(first cell of the row, header of the column) -> cell, of the filled ones of a Markdown table."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    header = [name.replace(",", "") for name in rows[0]]
    return {(row[0], name): cell for row in rows[2:] for name, cell in zip(header[1:], row[1:], strict=True) if cell}


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="an unpacked sdist: no results/, no lab/")
def test_the_page_of_accuracy_says_what_its_record_says() -> None:
    """Its table counts the rows of the record it links to first, among those with a requirement."""
    page = (DOCS / "accuracy.md").read_text()
    name = re.findall(r"\.\./results/([\w-]+)\.md", page)[0]
    record = json.loads((ROOT / "results" / f"{name}.json").read_text())
    rows = [row for row in record["rows"] if row["target"] is not None]
    assert f"{len(rows)} rows" in page
    assert f"source {record['source']}" in page
    assert record["date"].split()[0] in page

    def counted(rows: list[dict[str, Any]], *methods: str) -> tuple[str, str]:
        found = [
            (row, row["errors"][m], row["also"].get(m) or row["target"])
            for m in methods
            for row in rows
            if m in row["errors"]
        ]
        kept = sum(error != "NaN" and error <= target for _, error, target in found)
        nan = sum(error == "NaN" for _, error, _ in found)
        return f"{kept} of {len(found)}", f", {nan} NaN" if nan else ""

    roots = [row for row in rows if "spectralgrad Taylor(9)" in row["errors"]]
    second = [row for row in rows if "second" in row["function"]]
    rest = [row for row in rows if row not in roots and row not in second]
    torchs = ("torch.linalg.eigh + autograd", "torch.linalg.svd + autograd")
    cells = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in page.splitlines()
        if " of " in line and "|" in line
    ]
    assert len(cells) == 3
    for some, (_, exact, default, torch, torchspd) in zip((roots, rest, second), cells, strict=True):
        assert exact == counted(some, "spectralgrad Exact")[0]
        assert default == ("" if some is roots else counted(some, "spectralgrad")[0])
        assert torch == "".join(counted(some, *torchs))
        assert torchspd == counted(some, "torchspd")[0]
    for method, words in {
        "NewtonSchulz()": "keeps {}",
        "Lorentzian": "`Lorentzian()` {}",
        "Taylor(9)": "`Taylor(9)` {}",
    }.items():
        assert words.format(counted(roots, f"spectralgrad {method}")[0].split()[0]) in page
    assert f"xitorch {counted(roots, 'xitorch')[0].split()[0]}" in page


# The picture.


def figure(name: str) -> ModuleType:
    """The script that draws docs/figures/NAME.svg."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "figures" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gap() -> ModuleType:
    return figure("gap")


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="an unpacked sdist: no results/, no lab/")
def test_the_picture_of_the_evidence_shows_the_records_and_the_page() -> None:
    pytest.importorskip("spectralgrad_lab", reason="needs the laboratory")
    evidence = figure("evidence")
    store = evidence.Store(evidence.RECORDS)
    assert evidence.drawn(store) == (DOCS / "figures" / "evidence.svg").read_text(encoding="utf-8")
    page = (DOCS / "evidence.md").read_text(encoding="utf-8")
    claims = [line for lines in evidence.GROUPS.values() for line in lines if line.printed is not None]
    assert len(claims) == 8
    for line in claims:  # the page says what the picture draws
        assert evidence.measured(line, store).shown() in page, line.said


def test_the_picture_shows_what_is_measured(gap: ModuleType) -> None:
    """The committed lines are those of a fresh measurement, to half a decade; ours at rounding, the others not."""
    rows = [gap.measured(10.0**exponent, trials=21) for exponent in gap.EXPONENTS] + [gap.measured(0.0, trials=21)]
    assert all(row["ours"] < 3e-6 for row in rows)
    assert rows[8]["torch"] > 100 * rows[8]["ours"]  # a gap of 10^-4
    assert rows[-1]["torch"] == float("inf")
    assert min(rows[8]["clipping"], rows[8]["Taylor"]) > 0.1
    decade = (gap.HEIGHT - gap.TOP - gap.BOTTOM) / (gap.HIGHEST - gap.LOWEST)
    committed = lines(ElementTree.parse(DOCS / "figures" / "gap.svg").getroot())
    for name, points in lines(ElementTree.fromstring(gap.drawn(rows))).items():
        assert len(points) == len(gap.EXPONENTS)
        for (x, y), (committed_x, committed_y) in zip(points, committed[name], strict=True):
            assert x == committed_x
            assert abs(y - committed_y) < decade / 2


def lines(svg: ElementTree.Element) -> dict[str, list[tuple[float, float]]]:
    found = {}
    for line in svg.iter("{http://www.w3.org/2000/svg}polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        found[line.attrib["class"]] = [(x, y) for x, y in points]
    return found


def test_the_reference_of_the_picture_is_right(gap: ModuleType) -> None:
    """Against central differences in float64, of a function that knows no eigenvalues."""
    import torch

    generator = torch.Generator().manual_seed(3)
    M = gap.matrix(0.1, generator).double()
    G = torch.randn(M.shape, generator=generator, dtype=torch.float64)
    G, D = (G + G.mT) / 2, torch.ones_like(M) + torch.diag(torch.arange(4.0))

    def loss(M: torch.Tensor) -> float:
        return float((G.numpy() * importlib.import_module("scipy.linalg").inv(gap.sqrtm(M.numpy()).real)).sum())

    slope = (loss(M + 1e-5 * D) - loss(M - 1e-5 * D)) / 2e-5
    assert abs(slope - float((gap.reference(M, G) * D).sum())) < 1e-7 * abs(slope)


# The parts.


@pytest.mark.parametrize("part", [docstrings, navigation, reference], ids=lambda part: part.__name__)
def test_the_examples_of_the_parts(part: ModuleType) -> None:
    assert doctest.testmod(part).failed == 0
    assert doctest.testmod(part).attempted > 0


def test_a_docstring_becomes_fields_formulas_and_links() -> None:
    lines = ["|M|_F of M.", "", "    M = V_ * W", "", "Args:", "    a, b: (*B, n).", "        More.", "", "Raises:"]
    lines += ["    ShapeError: no.", "    ShapeError, TypeError.", "", ">>> M * 2", "4"]
    told = "\n".join(docstrings.converted(lines, {"ShapeError": "s.ShapeError"}))
    assert told.startswith("\\|M\\|_F of M.\n\n.. code-block:: text\n   :class: formula\n\n    M = V_ * W\n")
    assert ":Args:\n   * **a, b**: (\\*B, n).\n     More.\n" in told
    assert (
        "   * :py:obj:`ShapeError <s.ShapeError>`: no.\n   * :py:obj:`ShapeError <s.ShapeError>`, ``TypeError``.\n" in told
    )
    assert told.rstrip().endswith(">>> M * 2\n4")


def test_an_example_has_its_docstring_code_and_picture(tmp_path: Path) -> None:
    program, figures = tmp_path / "two_words.py", tmp_path / "figures"
    program.write_text('"""What it does.\n\npython examples/two_words.py\n"""\n\nprint(1)\n')
    (figures / "examples").mkdir(parents=True)
    told = examples.section(program, figures)
    assert "## two words" in told
    assert "\n\nWhat it does.\n\n```sh\npython examples/two_words.py\n```\n\n" in told
    assert "````python\nprint(1)\n````" in told
    assert "![" not in told
    (figures / "examples" / "two_words.svg").touch()
    assert "(/figures/examples/two_words.svg)" in examples.section(program, figures)


def formula(inside: str) -> str:
    """What becomes of a line of MathML, without the element around it."""
    row = mathml.tidied(ElementTree.fromstring(f"<mrow>{inside}</mrow>"))
    return ElementTree.tostring(row, encoding="unicode").removeprefix("<mrow>").removesuffix("</mrow>")


THIN = '<mspace width="0.167em" />'
COVERED = '<mpadded height="0.75em" depth="0.2em">'
FENCED = '<mo fence="true" stretchy="{}">|</mo>{}<mo fence="true" stretchy="{}">|</mo>'
SET = {
    "a slash": ("<mo>/</mo>", '<mo lspace="0" rspace="0">/</mo>'),
    "a sign": ("<mo>(</mo><mo>−</mo><mi>a</mi>", '<mo>(</mo><mo form="prefix">−</mo><mi>a</mi>'),
    "a difference": ("<mi>b</mi><mo>−</mo><mi>a</mi>", "<mi>b</mi><mo>−</mo><mi>a</mi>"),
    "a name": ("<mi>a</mi><mi>log</mi><mi>b</mi>", f"<mi>a</mi>{THIN}<mi>log</mi>{THIN}<mi>b</mi>"),
    "a name and a bracket": ("<mi>log</mi><mo>(</mo><mi>b</mi>", "<mi>log</mi><mo>(</mo><mi>b</mi>"),
    "an operator": ("<mi>a</mi><mo>max</mo><mi>b</mi>", f"<mi>a</mi>{THIN}<mi>max</mi>{THIN}<mi>b</mi>"),
    "a product": ("<mi>a</mi><mi>b</mi>", "<mi>a</mi><mi>b</mi>"),
    "a prime": ("<msup><mi>f</mi><mi>′</mi></msup>", '<mrow><mi>f</mi><mo lspace="0" rspace="0">′</mo></mrow>'),
    "a power": ("<msup><mi>f</mi><mi>k</mi></msup>", "<msup><mi>f</mi><mi>k</mi></msup>"),
    "a hat": ("<mover><mi>E</mi><mo>^</mo></mover>", "<mover><mi>E</mi><mo>ˆ</mo></mover>"),
    "a root": ("<msqrt><mi>n</mi></msqrt>", f"<msqrt>{COVERED}<mi>n</mi></mpadded></msqrt>"),
    "a root of several": ("<msqrt><mi>a</mi><mi>b</mi></msqrt>", f"<msqrt>{COVERED}<mi>a</mi><mi>b</mi></mpadded></msqrt>"),
    "a high root": ("<msqrt><msup><mi>a</mi><mn>2</mn></msup></msqrt>", "<msqrt><msup><mi>a</mi><mn>2</mn></msup></msqrt>"),
    "low bars": (FENCED.format("true", "<mi>a</mi>", "true"), FENCED.format("false", "<mi>a</mi>", "false")),
    "high bars": (FENCED.format("true", "<mfrac />", "true"), FENCED.format("true", "<mfrac />", "true")),
}


@pytest.mark.parametrize("case", SET)
def test_a_formula_is_set_as_tex_would_set_it(case: str) -> None:
    given, wanted = SET[case]
    assert formula(given) == wanted


@needs_sphinx
def test_a_formula_stays_with_the_stop_after_it() -> None:
    from parts.formulas import kept_together, mathml

    a, block = mathml("a", "inline"), mathml("a", "block")
    for text in (f"({a})", f"{a}.", f"{a}),"):
        assert kept_together(f"<p>of {text} b</p>") == f'<p>of <span class="together">{text}</span> b</p>'
    for text in (a, f"{a} .", f"{block}."):
        assert kept_together(f"<p>of {text} b</p>") == f"<p>of {text} b</p>"


@needs_sphinx
def test_the_typeface_of_formulas_has_their_signs_and_says_whose_it_is() -> None:
    import io

    from fontTools.ttLib import TTFont
    from parts import typeface

    assert doctest.testmod(typeface).failed == 0
    made = typeface.reduced({"a", "≤", "√", "("})
    font = TTFont(io.BytesIO(made))
    assert {*map(ord, "a≤√("), 0x1D44E} <= set(font.getBestCmap())  # 0x1D44E: the slanted a, which a browser takes
    assert not set(map(ord, "b+∑")) & set(font.getBestCmap())
    variants = font["MATH"].table.MathVariants
    root = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(font.getBestCmap()[ord("√")])]
    assert len(root.MathGlyphVariantRecord) == typeface.HEIGHTS
    assert root.GlyphAssembly is None
    assert len(font.getGlyphOrder()) > 20  # brackets and roots of several heights
    assert "Open Font License" in font["name"].getDebugName(13)
    assert typeface.reduced({"a", "≤", "√", "("}) == made
    assert "https://scripts.sil.org/OFL" in typeface.sheet({"a"})


@needs_sphinx
@pytest.mark.parametrize("text", ["loewner.md", "../loewner.md", "rules/exact.md", "see loewner.md", "loewner.html"])
def test_a_link_named_after_a_file_is_recognised(text: str) -> None:
    from parts import titles

    assert bool(titles.FILE.fullmatch(text)) == (text in ("loewner.md", "../loewner.md", "rules/exact.md"))


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#there">b</a> <a href="#here">x</a> <img src="b.html"/>')
    (tmp_path / "b.html").write_text('<p id="there"><a href="https://elsewhere.net">y</a>')
    assert links.dead(tmp_path) == []
    (tmp_path / "b.html").write_text(
        '<a href="#gone">x</a><a href="c.html">y</a><script src="https://cdn.net/x.js"></script>'
    )
    assert links.dead(tmp_path) == [
        "a.html: b.html#there",
        "b.html: #gone",
        "b.html: c.html",
        "b.html: loads https://cdn.net/x.js",
    ]


# The whole.


def make(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, str(MAKE), *words], capture_output=True, text=True, cwd=ROOT)


@needs_sphinx
@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_twice_the_same(tmp_path: Path) -> None:
    before = status()
    done = make(str(tmp_path / "site"))
    assert (done.returncode, done.stderr) == (0, "")
    site = tmp_path / "site"
    first = contents(site)
    assert [page for page in PAGES if f"{page}.html" not in first] == []
    for name, page in DOCUMENTED.items():
        html = first[str(page.relative_to(DOCS).with_suffix(".html"))].decode()
        assert f'id="{name}"' in html, name
    assert b"<math" in first["loewner.html"]
    assert b'href="_static/formulas.css' in first["loewner.html"]
    assert b"font/woff;base64," in first["_static/formulas.css"]
    assert make(str(site)).returncode == 0
    assert contents(site) == first
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    assert status() == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def status() -> str:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return ""
    return subprocess.run(["git", "status", "--short"], capture_output=True, text=True, cwd=ROOT).stdout


FAULTS: dict[str, tuple[str, str]] = {
    "a page that is not there": ("[x](gone.md)", "gone"),
    "a heading that is not there": ("[x](other.md#gone)", "gone"),
    "a formula that does not end": (r"$\left( a$", "no MathML"),
    "a command that TeX does not know": (r"$\nothing a$", "no MathML"),
    "a name that is not public": ("<!-- reference: nothing -->", "nothing"),
}


@needs_sphinx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("urls", "shown"),
    [
        (
            '[project.urls]\nSource = "https://forge.net/us/it/"',
            'href="https://forge.net/us/it/blob/main/pyproject.toml">source</a>',
        ),
        ('[project.urls]\nSource = "https://example.org/us/it"', '<span class="source">source</span>'),
        ("", '<span class="source">source</span>'),
    ],
)
def test_links_out_of_docs_lead_to_the_source(urls: str, shown: str, tmp_path: Path) -> None:
    """Where that is not decided, they are plain text."""
    small(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\n{urls}\n")
    assert make(str(tmp_path / "site"), "--docs", str(tmp_path / "docs")).returncode == 0
    assert shown in (tmp_path / "site" / "other.html").read_text()


def small(folder: Path) -> Path:
    """A folder of three pages, and the project's settings beside it."""
    docs = folder / "docs"
    docs.mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    rows = "".join(f"| [x]({name}.md) |\n" for name in ("index", "other", "README"))
    (docs / "README.md").write_text(f"# All\n\n## Start\n\n| page |\n|---|\n{rows}")
    (docs / "other.md").write_text("# Other\n\n[source](../pyproject.toml), `code`\n")
    (docs / "index.md").write_text("# Start\n\n[other](other.md#other), $a_i$\n\n<!-- reference: eigh -->\n")
    return docs


@needs_sphinx
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_stops_the_build_and_the_last_site_stays(fault: str, tmp_path: Path) -> None:
    docs, site = small(tmp_path), tmp_path / "site"
    done = make(str(site), "--docs", str(docs))
    assert (done.returncode, done.stderr) == (0, "")
    before = contents(site)
    text, said = FAULTS[fault]
    (docs / "index.md").write_text(f"# Start\n\n{text}\n")
    done = make(str(site), "--docs", str(docs))
    assert done.returncode == 1
    assert said in done.stderr
    assert "nothing was replaced" in done.stderr
    assert contents(site) == before


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path], str]:
    spec = importlib.util.spec_from_file_location("make_site", MAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PACKAGES", {"json": "json"})
    found: Callable[[Path, Path], str] = module.build
    return found


def test_what_is_not_installed_is_said(build: Callable[[Path, Path], str], tmp_path: Path) -> None:
    build.__globals__["PACKAGES"]["no_such_module"] = "no-such-package"
    told = build(DOCS, tmp_path / "site")
    assert "not installed: no-such-package." in told or "Python 3.11" in told
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_others_is_left_alone(build: Callable[[Path, Path], str], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for place in (tmp_path, tmp_path / "thesis.tex"):
        told = build(DOCS, place)
        assert "was not made by this command" in told or "Python 3.11" in told
    assert (tmp_path / "thesis.tex").read_text() == "years of work"

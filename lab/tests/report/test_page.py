"""The page as a file: complete, self-contained, escaped, and made without training anything."""

import base64
import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from lab_support.synthetic import COMPUTED, HOSTILE, SPECS, always, train
from lab_support.written import Written
from spectralgrad.errors import OptionError
from spectralgrad_lab.artifacts import registry
from spectralgrad_lab.artifacts.spec import Spec
from spectralgrad_lab.drawing import encoded
from spectralgrad_lab.records.results import SCALES, Computed, GalleryPicture, Printed
from spectralgrad_lab.records.store import Store, StoreError
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.page import write_page
from spectralgrad_lab.report.panel import Panel

VOID = {"img", "link", "meta", "br"}


class Reader(HTMLParser):
    """Checks that elements are closed in order; collects elements, and the text in each section."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.current = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self.current = dict(attrs)["id"] or ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "section":
            self.current = ""

    def handle_data(self, data: str) -> None:
        self.sections[self.current] = self.sections.get(self.current, "") + data + " "

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def reader(written: Written) -> Reader:
    return Reader(written.html)


def test_every_artifact_is_there_and_linked(reader: Reader) -> None:
    ids = [attributes["id"] for attributes in reader.all("section")]
    assert sorted(filter(None, ids)) == sorted(SPECS)
    targets = {attributes["id"] for _, attributes in reader.elements if "id" in attributes}
    inner = [link["href"] or "" for link in reader.all("a") if (link["href"] or "").startswith("#")]
    assert {href[1:] for href in inner} <= targets
    assert all(inner.count(f"#{id}") == 2 for id in SPECS)  # contents and summary


def test_the_papers_table_stands_beside_ours(reader: Reader) -> None:
    text = reader.sections["pami-table4"]
    for words in (
        "The paper's whole table",
        "d = 4: printed",
        "d = 4: ours",
        "46.7%",
        "illegible",
        "Misprint",
        "the minimum, 4.59, is above the mean",
        "Printed and ours, side by side",
        "100 % (3/3)",
        "0 % (0/3)",
        "SVD-Taylor never fails",
        "CIFAR-10, 12 epochs.",
        "90 of 90 trainings run: 78 finite, 78 converged",
        "3 seeds for each cell",
        "SVD, d = 64, seeds 0, 1, 2: ",
        "before the end of the first epoch",
    ):
        assert words in text, words


def test_what_has_no_records_says_so_in_one_line(reader: Reader) -> None:
    assert reader.sections["nips19-table5"].strip().endswith("At scale short: no records.")
    assert reader.sections["pami-table8"].strip().endswith("At scale short: no records.")


def test_agreement_and_remarks_are_shown(reader: Reader) -> None:
    assert "Equal to the paper's own numbers." in reader.sections["pami-fig3"]
    assert "The direction is kept by Taylor." in reader.sections["pami-fig3"]
    assert "Differs from the paper's own numbers." in reader.sections["nips19-table1"]
    assert "2 not at their end" in reader.sections["nips19-fig2"]
    assert "1 point not drawn" in reader.sections["pami-fig1a"]


def test_machine_and_versions_stand_at_the_end(reader: Reader) -> None:
    end = reader.sections[""].rpartition("Machines and versions")[2]
    assert re.search(r"\d+ records: cpu .+ cores \d+.* spectralgrad [\d.]+, python 3[\d.]+, torch [\d.]+", end)
    assert "Recorded from 20" in end


def test_headings_are_in_order_and_figures_have_words(reader: Reader) -> None:
    levels = [int(tag[1]) for tag, _ in reader.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    pictures = reader.all("img")
    assert len(pictures) >= 12
    assert all(len(picture["alt"] or "") > 20 for picture in pictures)
    assert all(attributes.get("scope") for attributes in reader.all("th"))


def test_the_page_needs_nothing_else(written: Written, reader: Reader) -> None:
    assert written.page.stat().st_size < 5e6
    assert not re.findall(r"https?://|@import|url\(", written.html)
    for _, attributes in reader.elements:
        source = attributes.get("src")
        if source is not None:
            kind, data = re.fullmatch(r"data:image/(png|jpeg);base64,(.+)", source).groups()  # type: ignore[union-attr]
            assert base64.b64decode(data).startswith({"png": b"\x89PNG", "jpeg": b"\xff\xd8"}[kind])
    assert "script" not in {tag for tag, _ in reader.elements}
    [policy] = [meta["content"] for meta in reader.all("meta") if meta.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert str(written.store.folder) not in written.html
    assert str(written.folder) not in written.html


def test_failure_reasons_are_escaped(written: Written, reader: Reader) -> None:
    assert "<script" not in written.html
    assert "onerror=alert(1)&gt;" in written.html
    assert HOSTILE in reader.sections["pami-table4"]  # it is read as it was written


def test_everything_that_is_named_is_escaped(tmp_path: Path) -> None:
    printed = Printed((HOSTILE,), {HOSTILE: (HOSTILE,)}, HOSTILE, (HOSTILE,))
    result = Computed(tables=(printed,), remarks=(HOSTILE,), curves=COMPUTED["pami-fig3"].curves, x_label=HOSTILE)
    spec = replace(
        SPECS["pami-fig3"], paper=HOSTILE, shows=HOSTILE, claim=HOSTILE, printed=(printed,), says={"smoke": HOSTILE}
    )
    store = Store(tmp_path / "records")
    store.save_computed(spec.id, "smoke", result)
    html = write_page(tmp_path / "page", store, {spec.id: spec}, "smoke").read_text(encoding="utf-8")
    reader = Reader(html)
    assert "script" not in {tag for tag, _ in reader.elements}
    assert not [attributes for _, attributes in reader.elements if "onerror" in attributes]
    assert reader.sections[spec.id].count("<script>") >= 12


def test_png_and_csv_stand_beside_the_page(written: Written, reader: Reader) -> None:
    files = {path.name for path in written.folder.iterdir()}
    linked = {link["href"] for link in reader.all("a") if not (link["href"] or "").startswith("#")}
    assert files == {"index.html"} | linked
    assert "pami-fig10-pictures.jpg" in files
    for id in set(SPECS) - {"nips19-table5", "pami-table8", "pami-fig10"}:
        assert f"{id}.csv" in files
        assert (f"{id}.png" in files) == (id != "nips19-table1")
    with (written.folder / "pami-table4.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    [row] = [row for row in rows if (row["row"], row["column"]) == ("SVD", "d = 8")]
    assert (row["run"], row["finite"], row["converged"], row["success_rate_percent"]) == ("3", "0", "0", "0.0")
    with (written.folder / "pami-fig1a.csv").open(encoding="utf-8", newline="") as file:
        points = {(row["label"], float(row["x"])): float(row["y"]) for row in csv.DictReader(file)}
    assert points["2^-10", 60.0] == 0.1
    assert len(points) == 15


def test_writing_again_gives_the_same_page(written: Written, tmp_path: Path) -> None:
    some = {id: SPECS[id] for id in ("pami-fig1b", "pami-fig3")}
    pages = [write_page(tmp_path / name, written.store, some, "short") for name in ("a", "b", "a")]
    first, *others = [re.sub(r"written on .* UTC", "", page.read_text(encoding="utf-8")) for page in pages]
    assert all(other == first for other in others)
    assert not [path for path in pages[0].parent.iterdir() if path.name.startswith(".")]


def test_another_scale_has_no_computed_records(written: Written, tmp_path: Path) -> None:
    page = write_page(tmp_path, written.store, {"pami-fig3": SPECS["pami-fig3"]}, "paper")
    assert "At scale paper: no records." in page.read_text(encoding="utf-8")


def test_a_damaged_record_does_not_cost_the_others_their_page(tmp_path: Path) -> None:
    store = Store(tmp_path / "records")
    for id in ("pami-fig3", "nips19-table1"):
        store.save_computed(id, "smoke", COMPUTED[id])
    (store.folder / "computed" / "pami-fig3-smoke.json").write_text("{", encoding="utf-8")
    some = {id: SPECS[id] for id in ("pami-fig3", "nips19-table1")}
    reader = Reader(write_page(tmp_path / "page", store, some, "smoke").read_text(encoding="utf-8"))
    assert "is damaged" in reader.sections["pami-fig3"]
    assert "1 damaged record left out" in reader.sections[""]
    assert "Differs from the paper's own numbers." in reader.sections["nips19-table1"]


def test_bad_input(tmp_path: Path) -> None:
    store = Store(tmp_path / "records")
    with pytest.raises(OptionError, match="scale must be one of smoke, short, paper, got 'long'"):
        write_page(tmp_path / "page", store, {}, "long")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be written"):
        write_page(tmp_path / "file", store, {}, "smoke")


def test_progress_names_every_artifact(tmp_path: Path) -> None:
    seen: list[str] = []
    some = {id: Spec(id, "PAMI", "", "style") for id in ("a", "b")}
    write_page(tmp_path / "page", Store(tmp_path / "records"), some, "smoke", progress=seen.append)
    assert seen == ["a", "b"]


def test_a_record_is_read_once(written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []
    lines = Store.lines
    monkeypatch.setattr(Store, "lines", lambda self, trial: reads.append(trial) or lines(self, trial))
    write_page(tmp_path, written.store, {"pami-fig6": SPECS["pami-fig6"]}, "short")
    assert len(reads) == len(set(reads)) == 16


def changed(path: Path, line: int, places: str, value: object) -> None:
    """Put a value into a record, at a place like «curves 0 y 0» of one of its lines."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines() if "\n{" in text else [text]
    whole = here = json.loads(lines[line])
    *way, last = (int(name) if name.isdigit() else name for name in places.split())
    for name in way:
        here = here[name]
    assert last in here if isinstance(here, dict) else here[last] is not None
    here[last] = value
    lines[line] = json.dumps(whole)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("id", "line", "places", "value", "says"),
    [
        ("pami-fig3", 0, "result curves 0 y 0", "NaN", "1 point not drawn"),
        ("pami-fig3", 0, "result curves 0 y 0", -1.7e308, "1 point not drawn"),
        ("pami-fig2", 0, "result curves 0 x 0", 1.7e308, "1 point not drawn"),
        ("pami-fig4", 0, "result surfaces 0 z 3 3", 1.7e308, "Our figure"),
        ("pami-fig4", 0, "result surfaces 0 x 20", 1.7e308, "figure «contours» is left out"),
        ("nips19-fig2", 1, "train_loss", 1.7e308, "Our figure"),
        ("pami-fig6", 1, "seconds", 1.7e308, "not drawn"),
        ("pami-fig5", 1, "train_error", 1.7e308, "train_error must be a number from 0 to 100, got 1.7e+308"),
        ("pami-fig1b", -1, "test_error", -1.7e308, "test_error must be a number from 0 to 100, or null, got -1.7e+308"),
    ],
)
def test_a_number_that_cannot_be_drawn_costs_its_record_or_figure_alone(
    id: str, line: int, places: str, value: object, says: str, tmp_path: Path
) -> None:
    store, spec = Store(tmp_path / "records"), SPECS[id]
    if spec.entries is not None:
        entries = spec.entries("short")[:2]
        spec = replace(spec, entries=always(entries))
        for trial in (trial for entry in entries for trial in entry.trials):
            train(store, trial)
        changed(store.files(entries[0].trials[0]).record, line, places, value)
    else:
        store.save_computed(id, "short", COMPUTED[id])
        changed(store._computed(id, "short"), line, places, value)
    told: list[str] = []
    page = write_page(tmp_path / "page", Store(store.folder), {id: spec}, "short", tell=told.extend)
    text = Reader(page.read_text(encoding="utf-8")).sections[id]
    assert says in text
    if "must be" in says or "left out" in says:
        assert any(says in line for line in told)


def test_what_matplotlib_cannot_draw_is_named(written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(panels: list[Panel], banner: str) -> bytes:
        raise StopIteration

    monkeypatch.setattr("spectralgrad_lab.report.findings.draw", draw)
    told: list[str] = []
    page = write_page(tmp_path, written.store, {"pami-fig6": SPECS["pami-fig6"]}, "short", tell=told.extend)
    assert [line for line in told if line.startswith("pami-fig6: figure «d = 4» is left out: StopIteration")]
    assert "figure «d = 4» is left out: StopIteration." in Reader(page.read_text(encoding="utf-8")).sections["pami-fig6"]
    assert not list(tmp_path.glob("*.png"))


def test_a_column_of_min_and_mean_is_turned_to_stand_as_ours_does(tmp_path: Path) -> None:
    rows: dict[str, tuple[str | None, ...]] = {
        "BN: min": ("4.66",),
        "BN: mean": ("4.81",),
        "PI: min": (None,),
        "PI: mean": ("5",),
    }
    printed = Printed(("Error (%)",), rows, "Table 5.")
    spec = replace(SPECS["pami-fig3"], printed=(printed, Printed(("k",), {"a: b": ("1",), "c": ("2",)}, "Odd.")))
    store = Store(tmp_path / "records")
    store.save_computed(spec.id, "smoke", Computed())
    html = write_page(tmp_path / "page", store, {spec.id: spec}, "smoke").read_text(encoding="utf-8")
    assert "Table 5. Error (%)." in html
    assert '<th scope="row">PI</th><td class="lost">illegible</td><td>5</td>' in html
    assert '<th scope="row">a: b</th><td>1</td>' in html  # not such a table: left as it is


def test_every_artifact_of_the_papers_has_its_place(tmp_path: Path) -> None:
    specs = registry.specs()
    store = Store(tmp_path / "records")
    for scale in SCALES:
        page = write_page(tmp_path / scale, store, specs, scale)
        reader = Reader(page.read_text(encoding="utf-8"))
        assert {attributes["id"] for attributes in reader.all("section")} == set(specs)
        assert len(reader.all("section")) == len(registry.IDS)


def detailed_pictures(rows: int, columns: int) -> tuple[GalleryPicture, ...]:
    """Pictures that compress as badly as a painting: strokes of noise at several sizes."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(rows * columns):
        noise = [torch.randn(1, 3, 256 // k, 256 // k, generator=generator) for k in (2, 4, 16, 64)]
        layers = [torch.nn.functional.interpolate(x, (256, 256), mode="bilinear") for x in noise]
        picture = torch.stack(layers).mul(torch.tensor([0.06, 0.08, 0.12, 0.15]).view(-1, 1, 1, 1, 1)).sum(0)[0] + 0.5
        made.append(GalleryPicture(f"row {i // columns}", f"column {i % columns}", encoded(picture), "strokes of noise"))
    return tuple(made)


@pytest.mark.slow
def test_the_whole_page_is_under_5_mb(tmp_path: Path) -> None:
    """All trainings of the papers at the short scale, with made-up numbers, and what is computed."""
    store, specs = Store(tmp_path / "records"), registry.specs()
    seen: set[Trial] = set()
    for spec in specs.values():
        for entry in spec.entries("short") if spec.entries else ():
            for trial in set(entry.trials) - seen:
                train(store, trial, fails_at=1 if trial.method == "svd" and trial.layer != "bn" else None)
            seen |= set(entry.trials)
        if spec.kind == "computed" and spec.compute:
            store.save_computed(spec.id, "short", spec.compute("smoke"))
        if spec.form in ("pictures", "points"):
            store.save_computed(spec.id, "short", Computed(pictures=detailed_pictures(rows=6, columns=7)))
    page = write_page(tmp_path / "page", store, specs, "short")
    html = page.read_text(encoding="utf-8")
    assert len(html) < 5e6
    assert len(Reader(html).all("img")) >= 40 + 3 * 42

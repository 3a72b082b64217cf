"""The artifacts of PAMI section 5.3: computed from networks that are trained once, with their pictures kept as files."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("PIL")

from PIL import Image

from spectralgrad_lab.artifacts import registry
from spectralgrad_lab.artifacts import style as style_artifacts
from spectralgrad_lab.artifacts.pami.fig2 import correlated, whitening_matrices
from spectralgrad_lab.artifacts.run import run_spec
from spectralgrad_lab.artifacts.spec import Spec
from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.deadline import Deadline, OutOfTime
from spectralgrad_lab.drawing import encoded
from spectralgrad_lab.models.wct import StyleNetwork, StylePair
from spectralgrad_lab.records.results import Computed, Curve, GalleryPicture, Printed, Scale
from spectralgrad_lab.records.store import Store, StoreError
from spectralgrad_lab.style_network import studio as style_studio
from spectralgrad_lab.style_network.studio import METHODS, STYLES, Studio, gallery_of, next_rows, studio
from spectralgrad_lab.style_network.train import StyleOutcome, TrainedStyle
from spectralgrad_lab.style_network.trial import StyleTrial
from spectralgrad_lab.style_network.workplace import Workplace

IDS = ("pami-fig2", "pami-table8", "pami-table9", "pami-table10", "pami-fig9", "pami-fig10")
SIZE = 64  # of smoke's pictures


class Blend(nn.Module):
    """In the place of a trained network: the middle of content and exemplar."""

    def stylise(self, content: Tensor, style: Tensor, domain: str) -> Tensor:
        assert domain in (*STYLES, "cezanne")
        return (content + style) / 2


class Trainings:
    """In the place of `trained`: counts the trials, and fails those of one variant."""

    def __init__(self, fails: str = "") -> None:
        self.seen: list[StyleTrial] = []
        self.fails = fails

    def __call__(
        self, trial: StyleTrial, folder: Path, *, progress: Callable[[dict[str, Any]], None], **_: object
    ) -> TrainedStyle:
        self.seen.append(trial)
        progress({"kind": "start", "trial": ""})
        for step in range(trial.every, trial.steps + 1, trial.every):
            progress({"kind": "log", "step": step, "seconds": 2.0})
        if trial.variant == self.fails:
            return TrainedStyle(None, StyleOutcome("failed", "the loss is NaN", 17, 1, 3.0), ())
        return TrainedStyle(Blend(), StyleOutcome("finished", "", trial.steps, 0, 3.0), ())  # type: ignore[arg-type]


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    made = Trainings()
    monkeypatch.setattr(style_studio, "trained", made)
    style_studio._TRAINED.clear()
    style_studio._opened.cache_clear()
    return made


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path / "records", device="cpu")


def opened(picture: GalleryPicture) -> Image.Image:
    return Image.open(io.BytesIO(picture.data)).convert("RGB")


def made(id: str, place: Workplace, scale: Scale = "smoke") -> Computed:
    spec = registry.find(id)
    assert spec.make is not None
    return spec.make(scale, place)


# --- the artifacts


def test_all_six_share_one_training_of_each_variant(
    trainings: Trainings, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(style_artifacts.CLASSIFIER_STEPS, "smoke", 1)
    for id in IDS:
        made(id, place)
    assert sorted(trial.variant for trial in trainings.seen) == sorted(METHODS.values())


def test_half_a_training_is_no_result(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run --seconds`: what was stopped in time is kept for the next run, and nothing is made of it."""
    given: list[float | None] = []

    def stopped(*_: object, seconds: float | None, **__: object) -> TrainedStyle:
        given.append(seconds)
        return TrainedStyle(Blend(), StyleOutcome("stopped", "", 5, 0, 1.0), ())  # type: ignore[arg-type]

    monkeypatch.setattr(style_studio, "trained", stopped)
    style_studio._TRAINED.clear()
    style_studio._opened.cache_clear()
    store = Store(place.folder)
    for deadline in (Deadline.after(600), Deadline.after(0)):
        with pytest.raises(OutOfTime):
            run_spec(registry.find("pami-fig9"), "smoke", store, device="cpu", deadline=deadline)
    assert store.load_computed("pami-fig9", "smoke") is None
    [seconds] = given  # when the time is over nothing is begun
    assert seconds is not None
    assert 0 < seconds <= 600
    assert not style_studio._TRAINED


def test_a_training_is_heard_of_now_and_then(trainings: Trainings, place: Workplace) -> None:
    said: list[str] = []
    made("pami-fig9", replace(place, say=said.append, changes=(("steps", 50),)))
    assert [text for text in said if text.startswith("gd: ")] == ["gd: step 25 of 50, 2 s", "gd: step 50 of 50, 2 s"]


def test_table8_judges_real_pictures_first(trainings: Trainings, place: Workplace) -> None:
    [table] = made("pami-table8", place).tables
    rows = list(table.rows)
    assert rows[0] == "Original"
    assert rows[-5:] == list(METHODS)
    assert [name.partition(":")[0] for name in table.columns[::2]] == ["Monet", "Real Photo", "Ukiyoe", "Vangogh", "Mean"]
    real = [float(str(cell)) for cell in table.rows["Original"]]
    assert real[1::2] == [0.0] * 5
    assert math.isclose(real[8], sum(real[:8:2]) / 4, abs_tol=0.01)
    for cells in table.rows.values():
        numbers = [float(str(cell)) for cell in cells]
        assert numbers[2] == real[2]  # photographs are not stylised
        for k in range(5):
            assert math.isclose(real[2 * k] - numbers[2 * k], numbers[2 * k + 1], abs_tol=0.011)
        assert math.isclose(numbers[8], sum(numbers[:8:2]) / 4, abs_tol=0.011)
    photographs = [float(str(cell)) for cell in table.rows["photographs as they are"]]
    assert photographs[0] + photographs[4] + photographs[6] < 100  # the control: they are no paintings


def test_table9_is_the_sharpness_of_what_was_painted(trainings: Trainings, place: Workplace) -> None:
    [table] = made("pami-table9", place).tables
    assert table.columns == ("Monet", "Ukiyoe", "Vangogh")
    where = studio("smoke", place)
    for k, domain in enumerate(STYLES):
        blend = (where.contents() + where.exemplars(domain)) / 2
        luma = (blend * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1) * 255
        dy, dx = torch.gradient(luma, dim=(1, 2))
        expected = (dx**2 + dy**2).sqrt().mean()
        assert float(str(table.rows["SVD-WCT"][k])) == pytest.approx(float(expected), abs=0.006)
    assert len({table.rows[name] for name in table.rows}) == 4  # paintings, contents, colours; all methods blend alike


def test_table10_has_a_time_and_a_share_for_each_method(trainings: Trainings, place: Workplace) -> None:
    result = made("pami-table10", place)
    [table] = result.tables
    assert table.columns == tuple(METHODS)
    assert all(float(str(cell)) > 0 for cell in table.rows["Reference time (ms)"])
    assert table.rows["of which decompositions"] == ("0%",) * 5  # a blend decomposes nothing
    assert "one picture of 64 x 64" in result.remarks[0]


@pytest.mark.parametrize(("variant", "low", "high"), [("gd", 0.0, 0.0), ("exact", 0.01, 0.99), ("pi", 0.01, 0.99)])
def test_the_share_of_decompositions_is_that_of_the_roots(variant: str, low: float, high: float) -> None:
    pair = StylePair(StyleNetwork(variant, width=4, group_size=8), None, ("monet",)).eval()
    picture = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    calls: list[int] = []

    def run() -> None:
        calls.append(0)
        pair.stylise(picture, picture, "monet")

    share = style_artifacts.decomposition_share(pair, run, torch.device("cpu"), 3)
    assert low <= share <= high
    assert len(calls) == 4  # one to warm up
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in pair.modules())  # none is left behind


@pytest.mark.parametrize(("id", "methods"), [("pami-fig9", ("GD-WCT", "SVD-WCT")), ("pami-fig10", tuple(METHODS))])
def test_figures_have_content_and_exemplar_first(
    id: str, methods: tuple[str, ...], trainings: Trainings, place: Workplace
) -> None:
    pictures = made(id, place).pictures
    width = 2 + len(methods)
    assert len(pictures) == 3 * width
    for start in range(0, len(pictures), width):
        row = pictures[start : start + width]
        assert [picture.column for picture in row] == ["content", "exemplar", *methods]
        assert len({picture.row for picture in row}) == 1
        assert all(len(picture.alt) > 10 for picture in row)
        content, exemplar, painted = (opened(row[k]).getpixel((20, 30)) for k in (0, 1, 2))
        assert all(abs(2 * c - a - b) <= 4 for a, b, c in zip(content, exemplar, painted, strict=True))  # type: ignore[arg-type]
    assert not any(picture.original for picture in pictures)  # drawn by a program: nobody's data


def test_pictures_of_the_data_are_marked_as_such(trainings: Trainings, place: Workplace) -> None:
    where = studio("smoke", place)
    pictures = gallery_of(where, ("SVD-WCT",), where.artworks, [("monet", 0)], original=True)
    assert [picture.original for picture in pictures] == [True, True, False]
    assert [opened(picture).size for picture in pictures] == [(SIZE, SIZE)] * 3


def test_photographs_are_taken_in_turn() -> None:
    pictures = SimpleNamespace(test={"photo": range(4), **dict.fromkeys(STYLES, range(2))})
    where = Studio("smoke", Workplace(Path()), pictures, torch.device("cpu"))  # type: ignore[arg-type]
    assert next_rows(where, 2, 1) == [("monet", 2), ("ukiyoe", 3), ("vangogh", 0)]


def test_a_failed_training_is_a_dash_with_its_reason(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, trainings: Trainings
) -> None:
    monkeypatch.setitem(style_artifacts.CLASSIFIER_STEPS, "smoke", 1)
    trainings.fails = "clip"
    results = {id: made(id, place) for id in ("pami-table8", "pami-table9", "pami-table10", "pami-fig10")}
    assert set(results["pami-table9"].tables[0].rows["Clip-WCT"]) == {"–"}
    cells = results["pami-table8"].tables[0].rows["Clip-WCT"]
    assert [cell == "–" for cell in cells] == [True, True, False, False] + [True] * 6
    assert results["pami-table10"].tables[0].rows["Reference time (ms)"][1] == "–"
    assert "Clip-WCT" not in {picture.column for picture in results["pami-fig10"].pictures}
    for result in results.values():
        assert any("the loss is NaN" in text for text in result.remarks)


def test_networks_of_another_length_have_their_own_key_and_say_so(trainings: Trainings, place: Workplace) -> None:
    result = made("pami-fig9", replace(place, changes=(("steps", 7),)))
    assert {trial.steps for trial in trainings.seen} == {7}
    assert any("Not as the scale has it: steps = 7" in text for text in result.remarks)


def test_as_is_trains_nothing(trainings: Trainings, place: Workplace) -> None:
    result = made("pami-table9", replace(place, as_is=True))
    assert trainings.seen == []
    assert all(set(result.tables[0].rows[method]) == {"–"} for method in METHODS)
    assert any("GD-WCT missing" in text for text in result.remarks)


def test_at_paper_scale_every_domain_has_a_network_of_its_own(place: Workplace) -> None:
    drawn = embedded_artworks(8, 2)
    where = Studio("paper", place, drawn, torch.device("cpu"))
    assert where.trial("PI-WCT", "monet").deflation == "printed"
    assert where.trial("SVD-WCT", "monet").deflation == "two-sided"
    assert [where.trial("PI-WCT", domain).domains for domain in STYLES] == [(domain,) for domain in STYLES]
    where = Studio("short", place, drawn, torch.device("cpu"))
    assert len({where.trial("PI-WCT", domain).key for domain in STYLES}) == 1


def test_cezanne_is_a_column_where_there_are_pictures(trainings: Trainings, place: Workplace) -> None:
    where = studio("smoke", place)
    assert where.styles == STYLES
    assert any("Cezanne" in text for text in where.remarks("SVD-WCT"))
    for pictures in (where.artworks.train, where.artworks.test):
        pictures["cezanne"] = pictures["monet"].flip(1)
    result = made("pami-table9", place)
    assert result.tables[0].columns == ("Cezanne", "Monet", "Ukiyoe", "Vangogh")
    assert not any("Cezanne" in text for text in result.remarks)
    assert trainings.seen[-1].domains == ("vangogh", "monet", "ukiyoe", "cezanne")
    columns = made("pami-table8", place).tables[0].columns
    assert columns[:4] == ("Cezanne: Acc.", "Cezanne: Δ Acc.", "Monet: Acc.", "Monet: Δ Acc.")
    style_studio._opened.cache_clear()


# --- Figure 2


def test_both_whitenings_decorrelate_and_only_pca_turns() -> None:
    points = correlated(200)
    for S, turned in zip(whitening_matrices(points), (True, False), strict=True):
        white = S @ points
        torch.testing.assert_close(white @ white.T / 200, torch.eye(2, dtype=torch.float64), atol=1e-10, rtol=0)
        U, _, Vh = torch.linalg.svd(S)
        assert (float((U @ Vh - torch.eye(2)).abs().max()) > 0.1) is turned
        assert S.det() > 0


def test_figure2_has_points_and_pictures(trainings: Trainings, place: Workplace) -> None:
    result = made("pami-fig2", place)
    rows = {name: [float(str(cell).rstrip("°")) for cell in cells] for name, cells in result.tables[0].rows.items()}
    assert rows["(b) PCA-whitened"][:3] == rows["(c) ZCA-whitened"][:3] == [1, 1, 0]
    assert rows["(a) original"][2] > 0.5
    assert abs(rows["(b) PCA-whitened"][3]) > 20
    assert rows["(c) ZCA-whitened"][3] == 0
    assert [curve.label for curve in result.curves[::2]] == [f"{name}: points" for name in rows]
    assert all(len(a.x) + len(b.x) == 150 for a, b in zip(result.curves[::2], result.curves[1::2], strict=True))
    assert {picture.row for picture in result.pictures} == {"(d) colour transfer", "(e) style transfer, SVD-WCT"}
    assert {trial.variant for trial in trainings.seen} == {"taylor"}  # it needs no other


# --- pictures as files


@pytest.mark.parametrize(("size", "kind", "bound"), [(32, "PNG", 0), (160, "JPEG", 12)])
def test_a_picture_survives_its_file(size: int, kind: str, bound: int) -> None:
    ramp = torch.linspace(0, 1, size).expand(3, size, size) * torch.tensor([1.0, 0.5, 0.2]).view(3, 1, 1)
    file = Image.open(io.BytesIO(encoded(ramp)))
    assert (file.format, file.size) == (kind, (size, size))
    back = torch.tensor(list(file.convert("RGB").tobytes())).view(size, size, 3).permute(2, 0, 1)
    assert ((ramp * 255).round() - back).abs().max() <= bound
    assert Image.open(io.BytesIO(encoded(torch.full((3, 4, 6), 2.0)))).getpixel((5, 3)) == (255, 255, 255)


def pictures() -> tuple[GalleryPicture, ...]:
    return tuple(
        GalleryPicture("Monet: 1/2", column, encoded(torch.full((3, 8, 8), shade)), f"{column} in words", original)
        for column, shade, original in (("content", 0.1, True), ("exemplar", 0.2, True), ("SVD-WCT", 0.3, False))
    )


def test_the_store_keeps_pictures_beside_the_record(tmp_path: Path) -> None:
    store = Store(tmp_path / "r")
    result = Computed(tables=(Printed(("a",), {"b": ("1",)}),), pictures=pictures())
    store.save_computed("pami-fig10", "short", result)
    assert store.load_computed("pami-fig10", "short") == result
    folder = store.folder / "computed" / "pami-fig10-short"
    assert sorted(path.name for path in folder.iterdir()) == [
        "000-monet-1-2-content.png",
        "001-monet-1-2-exemplar.png",
        "002-monet-1-2-svd-wct.png",
    ]
    text = (store.folder / "computed" / "pami-fig10-short.json").read_text()
    assert len(text) < 5000  # the pictures are not in it


def test_originals_may_be_removed_and_results_may_not(tmp_path: Path) -> None:
    store = Store(tmp_path / "r")
    store.save_computed("pami-fig10", "short", Computed(pictures=pictures()))
    folder = store.folder / "computed" / "pami-fig10-short"
    (folder / "000-monet-1-2-content.png").unlink()
    found = store.load_computed("pami-fig10", "short")
    assert found is not None
    assert [picture.column for picture in found.pictures] == ["exemplar", "SVD-WCT"]
    (folder / "002-monet-1-2-svd-wct.png").unlink()
    assert store.load_computed("pami-fig10", "short") is None
    (said,) = store.damage_of([], ("pami-fig10", "short"))
    assert "is damaged (a picture: No such file or directory)" in said


def test_a_record_reads_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "r")
    store.save_computed("pami-fig10", "short", Computed(pictures=pictures()[2:]))
    path = store.folder / "computed" / "pami-fig10-short.json"
    (tmp_path / "secret.png").write_bytes(b"\x89PNG secret")
    record = json.loads(path.read_text())
    record["result"]["pictures"][0]["file"] = "../../../secret.png"
    path.write_text(json.dumps(record))
    assert store.load_computed("pami-fig10", "short") is None
    assert "is damaged" in store.damage_of([], ("pami-fig10", "short"))[0]


def test_records_from_before_there_were_pictures_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "r")
    result = Computed(curves=(Curve("a", (1.0,), (2.0,)),))
    store.save_computed("pami-fig3", "smoke", result)
    path = store.folder / "computed" / "pami-fig3-smoke.json"
    record = json.loads(path.read_text())
    del record["result"]["pictures"]
    path.write_text(json.dumps(record))
    assert store.load_computed("pami-fig3", "smoke") == result


def test_a_folder_with_style_trainings_alone_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "r" / "style" / "exact").mkdir(parents=True)
    assert Store(tmp_path / "r").trials() == []
    (tmp_path / "other" / "letters").mkdir(parents=True)
    with pytest.raises(StoreError, match="holds other files"):
        Store(tmp_path / "other")


# --- run


def test_run_makes_once_and_says_how_far_it_is(tmp_path: Path) -> None:
    calls: list[tuple[str, Workplace]] = []
    said: list[str] = []

    def make(scale: Scale, place: Workplace) -> Computed:
        calls.append((scale, place))
        place.say("half")
        return Computed(pictures=pictures())

    store = Store(tmp_path / "r")
    spec = Spec("pami-fig10", "PAMI", "pictures", "style", make=make)
    for scale in ("smoke", "smoke", "short"):
        run_spec(spec, scale, store, data=tmp_path, device="cpu", say=said.append)  # type: ignore[arg-type]
    assert [scale for scale, _ in calls] == ["smoke", "short"]
    assert calls[0][1] == Workplace(store.folder, tmp_path, "cpu")
    assert said == ["half", "half"]
    found = store.load_computed("pami-fig10", "smoke")
    assert found is not None
    assert found.pictures == pictures()

"""The page: filled from records, the same every time, and honest about what it holds."""

import json
import math
from pathlib import Path

import pytest

from spectralgrad.errors import OptionError
from spectralgrad_lab.bench import page, run
from spectralgrad_lab.bench.peers import OURS
from spectralgrad_lab.bench.rows import Row
from spectralgrad_lab.cli import main
from spectralgrad_lab.records import machine as record

ROOT = Path(__file__).resolve().parents[3]
EMPTY = (
    "# Speed\n\nfirst\n\n<!-- bench:measured -->\n<!-- /bench:measured -->\n\n"
    "then\n\n<!-- bench:losses -->\n<!-- /bench:losses -->\n"
)

ROWS = [
    Row("eigh", "", 16, 1, "ratio", 3.0, (2.5, 3.5), 2.0, True, "torch.linalg.eigh", 5, {OURS: (1e-3, 2e-3, 3e-3)}),
    Row("eigh", "", 16, 256, "ratio", 1.5, (1.4, 1.6), 2.0, True, "torch.linalg.eigh", 5),
    Row("eigh", "", 64, 256, "ratio", 150.0, (140.0, 160.0), 120.0, True, "torch.linalg.eigh", 5),
    Row("accuracy", "residual", 16, 256, "error", 1.2, target=10.0, at_least=False, errors={OURS: 1.2}),
    Row("accuracy", "orthogonality", 16, 256, "error", math.nan, target=10.0, at_least=False, errors={OURS: math.nan}),
    Row("graph", "64x1x8x8", 16, 64, "error", failed={OURS: "RuntimeError: capture failed"}),
]


def written(folder: Path, rows: list[Row], load: float = 0.1, stem: str = "bench-some-gpu") -> Path:
    about = record.circumstances("spectralgrad bench --gpu")
    about["machine"] |= {"gpu": "Some GPU", "gpu_memory_gib": 1.0, "cuda": "13.0", "load_average_1min": load, "cores": 2}
    names = record.write(folder, stem, about, [row.for_record() for row in rows], "whole table")
    return folder / names[0]


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    target = tmp_path / "docs" / "speed.md"
    target.parent.mkdir()
    target.write_text(EMPTY)
    return written(tmp_path / "results", ROWS), target


def test_rows_survive_the_record(tmp_path: Path) -> None:
    _, rows = page.read(written(tmp_path, ROWS))
    assert rows[:4] == ROWS[:4]
    assert rows[5] == ROWS[5]
    assert rows[4].figure is not None
    assert math.isnan(rows[4].figure)
    assert [row.verdict for row in rows] == ["met", "missed", "met", "met", "missed", "failed"]


def test_page_holds_figures_targets_and_losses(place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    source, target = place
    assert main(["bench", "--page", str(source), "--into", str(target)]) == 0
    text = target.read_text()
    assert "### Some GPU" in text
    assert "| 16 | 3 (>= 2) | 1.5 (>= 2, **missed**)" in text
    assert "| 64 |          | 150 (>= 120)" in text
    assert "| 16 | 1.2 (<= 10) | nan (<= 10, **missed**) |" in text
    assert "3 of 6 targets met, 1 cases failed." in text
    assert "(../results/bench-some-gpu.md)" in text
    losses = text[text.index("then") :]
    assert "eigh, d = 16, B = 256: 1.5x (1.4 to 1.6), target >= 2." in losses
    assert "RuntimeError: capture failed" in losses
    assert "d = 64" not in losses
    assert (target.parent / "figures" / "speed-some-gpu.svg").read_text().count("B = 256") == 1
    assert text.startswith("# Speed\n\nfirst\n\n<!-- bench:measured -->")
    assert str(target) in capsys.readouterr().out


def test_cases_of_one_batch_have_columns_and_lines_of_their_own(tmp_path: Path) -> None:
    labels = ("128x64x32x32", "128x64x32x32, channels_last")
    rows = [
        Row("whitening", label, d, 128, "ratio", figure + d, None, 4.0, False, "BatchNorm2d", 5)
        for figure, label in enumerate(labels, 1)
        for d in (4, 16)
    ]
    source, target = written(tmp_path, rows), tmp_path / "speed.md"
    target.write_text(EMPTY)
    page.write_page([source], target)
    lines = [" ".join(line.split()) for line in target.read_text().splitlines()]
    assert "| d | 128x64x32x32 | 128x64x32x32, channels_last |" in lines
    assert "| 4 | 5 (<= 4, **missed**) | 6 (<= 4, **missed**) |" in lines
    picture = (tmp_path / "figures" / "speed-some-gpu.svg").read_text()
    assert all(f">{label}<" in picture for label in labels)


def test_page_is_the_same_from_the_same_records(place: tuple[Path, Path]) -> None:
    source, target = place
    files = page.write_page([source, source], target)
    first = [file.read_bytes() for file in files]
    assert page.write_page([source, source], target) == files
    assert [file.read_bytes() for file in files] == first
    assert first[0].count(b"### Some GPU") == 2  # every record has its part
    fewer = written(source.parent, ROWS[1:3])
    page.write_page([fewer], target)
    assert target.read_bytes() != first[0]
    assert target.with_name("figures").joinpath("speed-some-gpu.svg").read_bytes() != first[1]


def test_native_kernels_have_a_part_of_their_own(place: tuple[Path, Path]) -> None:
    whole, target = place
    rows = [
        Row("cpu", f"3x3, float32, {level}", 3, 9, "ratio", figure, target=asked, function="eigh", dtype="float32")
        for level, figure, asked in (("avx512", 40.0, 30.0), ("avx2", 10.0, 20.0), ("baseline", 5.0, None))
    ]
    native = written(whole.parent, rows, stem="bench-some-gpu-cpu")
    with pytest.raises(OptionError, match="bench:cpu"):
        page.write_page([whole, native], target)
    target.write_text(EMPTY + "\n<!-- bench:cpu -->\n<!-- /bench:cpu -->\n")
    page.write_page([whole, native], target)
    before, _, after = target.read_text().partition("<!-- bench:cpu -->")
    assert "### Some GPU" in before
    assert "| eigh float32, 9 of 3x3 | 40 (>= 30) | 10 (>= 20, **missed**) | 5        |" in after
    assert "1 of 2 targets met. [The whole table](../results/bench-some-gpu-cpu.md)" in after


def test_two_records_of_one_machine_have_a_figure_each(place: tuple[Path, Path]) -> None:
    whole, target = place
    part = written(whole.parent, ROWS[1:3], stem="bench-some-gpu-eigh")
    figures = page.write_page([whole, part], target)[1:]
    assert [path.name for path in figures] == ["speed-some-gpu.svg", "speed-some-gpu-eigh.svg"]
    assert all(target.read_text().count(f"figures/{path.name})") == 1 for path in figures)
    assert figures[0].read_bytes() != figures[1].read_bytes()


def test_a_record_of_one_size_has_no_figure(place: tuple[Path, Path]) -> None:
    whole, target = place
    alone = written(whole.parent, [ROWS[2]], stem="bench-some-gpu-eigh")
    assert page.write_page([alone], target) == [target]
    assert "figures/" not in target.read_text()


def test_busy_machine_is_named(tmp_path: Path) -> None:
    assert "busy" in page.measured(written(tmp_path, ROWS, load=2.5), tmp_path / "speed.md")
    assert "busy" not in page.measured(written(tmp_path, ROWS, load=0.2), tmp_path / "speed.md")


@pytest.mark.parametrize("text", ["no marks", EMPTY.replace("<!-- /bench:losses -->", ""), EMPTY + EMPTY])
def test_page_without_its_marks_is_refused_and_left_alone(place: tuple[Path, Path], text: str) -> None:
    source, target = place
    target.write_text(text)
    with pytest.raises(OptionError, match="must have the lines <!-- bench:"):
        page.write_page([source], target)
    assert target.read_text() == text


@pytest.mark.parametrize("text", ["{}", "no json", '{"rows": [{"section": "eigh"}]}', "[]"])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(text)
    (tmp_path / "speed.md").write_text(EMPTY)
    assert main(["bench", "--page", str(tmp_path / "x.json"), "--into", str(tmp_path / "speed.md")]) == 2
    assert "x.json is no record of `spectralgrad bench`" in capsys.readouterr().err
    assert (tmp_path / "speed.md").read_text() == EMPTY


def test_our_page_is_what_its_records_give(tmp_path: Path) -> None:
    """docs/speed.md is not edited by hand inside its marks: its own records give it again."""
    text = (ROOT / "docs" / "speed.md").read_text()
    names = page.records_of(text)
    assert names
    copy = tmp_path / "docs" / "speed.md"
    copy.parent.mkdir()
    copy.write_text(text)
    (tmp_path / "results").mkdir()
    for name in names:
        (tmp_path / "results" / name).write_text((ROOT / "results" / name).read_text())
    page.write_page([tmp_path / "results" / name for name in names], copy)
    assert copy.read_text() == text
    for name in names:
        assert json.loads((ROOT / "results" / name).read_text())["partial"] is False


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda path: path.stem)
def test_the_table_beside_a_record_is_what_the_record_gives(path: Path) -> None:
    about, rows = page.read(path)
    assert path.with_suffix(".md").read_text().strip() == run.markdown(about, rows)

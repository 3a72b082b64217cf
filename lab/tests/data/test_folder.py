"""Folders of images, decoded while they are used: order, crops, shares, memory; odd pictures are read, broken ones named."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import _utils

from lab_support.shared_data import SHARED
from lab_support.tiny_imagenet import save
from spectralgrad.errors import OptionError
from spectralgrad_lab.data import DataError, open_source, stream
from spectralgrad_lab.data.decode import decode
from spectralgrad_lab.data.folder import SIZE, Streamed, open_folder
from spectralgrad_lab.data.stream import STAND_INS, WORKERS, worker_count
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.training.train import run_trial

RED, BLUE = (255, 0, 0), (0, 0, 255)
N, TEST = 10, 5  # images of each of two classes

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def write_folder(root: Path) -> Path:
    """Cats are red and dogs blue; the green of an image is its number, the same over its whole."""
    for part, count in (("train", N), ("val", TEST)):
        for name, (red, _, blue) in (("cats", RED), ("dogs", BLUE)):
            for index in range(count):
                save(root / part / name / f"{index:02d}.png", (red, 10 * index, blue), (20, 30))
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKERS, "0")


def epoch(data: Streamed, size: int = 8, **options: Any) -> tuple[Tensor, Tensor]:
    parts = list(data.train_batches(size, **{"seed": 0, "epoch": 0, **options}))
    return torch.cat([x for x, _, _ in parts]), torch.cat([y for _, y, _ in parts])


def test_folders_are_classes(root: Path) -> None:
    data = open_folder(root)
    assert (data.classes, data.channels, data.size, data.train_count, data.test_count) == (2, 3, 224, 2 * N, 2 * TEST)
    batches = list(data.test_batches(4))
    assert [len(y) for _, y in batches] == [4, 4, 2]
    x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    assert x.shape == (2 * TEST, 3, 224, 224)
    assert x.dtype == torch.uint8
    assert y.tolist() == [0] * TEST + [1] * TEST
    assert x[:, :, 9, 9].tolist() == [[255, 10 * i, 0] for i in range(TEST)] + [[0, 10 * i, 255] for i in range(TEST)]
    torch.testing.assert_close(data.mean / 255, torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64))
    torch.testing.assert_close(data.std / 255, torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64))
    assert open_source("folder", root).test_count == 2 * TEST


def test_every_image_comes_once_an_epoch(root: Path) -> None:
    parts = list(open_folder(root).train_batches(8, seed=0, epoch=0))
    assert [samples for _, _, samples in parts] == [8, 8, 4]
    x, y = epoch(open_folder(root))
    found = [(int(label), int(green)) for label, green in zip(y, x[:, 1, 9, 9], strict=True)]
    assert sorted(found) == [(label, 10 * i) for label in (0, 1) for i in range(N)]
    assert found != sorted(found)
    assert [samples for _, _, samples in open_folder(root).train_batches(8, seed=0, epoch=0, drop_last=True)] == [8, 8]


@pytest.fixture(scope="module")
def ramps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of 256 x 256 in which red is the column and green the row: a crop says where it is from."""
    folder = tmp_path_factory.mktemp("ramps")
    along = np.arange(256, dtype=np.uint8)
    for part, count in (("train", 24), ("val", 1)):
        (folder / part / "one").mkdir(parents=True)
        for index in range(count):
            pixels = np.stack(np.broadcast_arrays(along[None], along[:, None], np.uint8(index)), -1)
            Image.fromarray(pixels).save(folder / part / "one" / f"{index:02d}.png", compress_level=1)
    return folder


def test_training_crops_and_mirrors_at_random_and_a_test_takes_the_middle(ramps: Path) -> None:
    data = open_folder(ramps)
    x, _ = epoch(data)
    square = torch.arange(SIZE)
    corners, mirrored = [], []
    for image in x.long():
        flipped = bool(image[0, 0, 0] > image[0, 0, -1])
        image = image.flip(-1) if flipped else image
        right, down = int(image[0, 0, 0]), int(image[1, 0, 0])
        assert torch.equal(image[0], (right + square).expand(SIZE, SIZE))
        assert torch.equal(image[1], (down + square)[:, None].expand(SIZE, SIZE))
        corners += [right, down]
        mirrored.append(flipped)
    assert min(corners) >= 0
    assert max(corners) <= 32
    assert len(set(corners)) > 15
    assert 3 < sum(mirrored) < 21
    for plain in (next(data.test_batches(1))[0], epoch(data, augment=False)[0]):
        assert plain[:, 0, 0, 0].unique().tolist() == plain[:, 1, 0, 0].unique().tolist() == [16]


@pytest.mark.parametrize("workers", [1, 3])
def test_order_and_crops_depend_on_seed_and_epoch_alone(workers: int, ramps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = epoch(open_folder(ramps), seed=3, epoch=7)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    monkeypatch.setenv(WORKERS, str(workers))
    for size in (8, 5):
        again = epoch(open_folder(ramps), size, seed=3, epoch=7)
        assert torch.equal(again[0], x)
        assert torch.equal(again[1], y)
    assert torch.equal(torch.get_rng_state(), state)  # a training's own numbers are not touched
    monkeypatch.setenv(WORKERS, "0")
    for other in ({"seed": 3, "epoch": 8}, {"seed": 4, "epoch": 7}):
        found = epoch(open_folder(ramps), **other)[0]
        assert not torch.equal(found[:, 2], x[:, 2])  # another order
        by_image = [images[images[:, 2, 0, 0].sort().indices] for images in (found, x)]
        assert not torch.equal(*by_image)  # and other crops


@pytest.mark.parametrize("world", [2, 3, 20])
def test_ranks_share_each_batch(world: int, root: Path) -> None:
    data = open_folder(root)
    want = list(data.train_batches(8, seed=0, epoch=0))
    shares = [list(data.train_batches(8, seed=0, epoch=0, rank=rank, world=world)) for rank in range(world)]
    for step, (x, y, samples) in enumerate(want):
        assert torch.equal(torch.cat([share[step][0] for share in shares]), x)
        assert torch.equal(torch.cat([share[step][1] for share in shares]), y)
        assert all(share[step][2] == samples for share in shares)
    tests = [y for rank in range(world) for _, y in data.test_batches(3, rank=rank, world=world)]
    assert torch.cat(tests).tolist() == [0] * TEST + [1] * TEST


def test_a_part_is_always_the_same(root: Path) -> None:
    part = open_folder(root, train_samples=6, test_samples=3)
    assert (part.train_count, part.test_count) == (6, 3)
    assert torch.equal(epoch(part)[0], epoch(open_folder(root, train_samples=6))[0])


# Memory and processes.


def test_workers_decode_no_more_than_the_batches_in_flight(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if multiprocessing.get_start_method() != "fork":
        pytest.skip("a patch reaches forked workers alone")
    log = tmp_path / "log"
    log.touch()

    def noted(who: str, path: Path) -> Image.Image:
        with log.open("ab") as file:
            file.write(b".")
        return decode(who, path)

    monkeypatch.setattr(stream, "decode", noted)
    monkeypatch.setenv(WORKERS, "2")
    batches = open_folder(root).train_batches(1, seed=0, epoch=0)
    for taken in (1, 2, 6):
        for _ in range(taken - {1: 0, 2: 1, 6: 2}[taken]):
            next(batches)
        end, before = time.monotonic() + 20, -1
        while log.stat().st_size != before and time.monotonic() < end:
            before = log.stat().st_size
            time.sleep(0.3)
        assert taken < log.stat().st_size <= taken + 2 * 2  # two a worker: ahead, but not far
    assert len(list(batches)) == 2 * N - 6
    assert log.stat().st_size == 2 * N


PEAK = """
import resource, sys
from pathlib import Path
from spectralgrad_lab.data.folder import open_folder
for _ in open_folder(Path(sys.argv[1]), train_samples=int(sys.argv[2])).train_batches(32, seed=0, epoch=0):
    pass
print(max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)) // 1024)
"""


@pytest.mark.slow
def test_many_images_take_no_more_memory_than_a_few(tmp_path: Path) -> None:
    """In MiB, of the largest process. Decoded, 6000 images are 861 MiB; batches that left a heap in pieces took 250."""
    write_folder(tmp_path)
    Image.effect_noise((300, 260), 60).convert("RGB").save(tmp_path / "picture.jpg")
    for index in range(6000):
        (tmp_path / "train" / "cats" / f"{index}.jpg").symlink_to(tmp_path / "picture.jpg")
    peaks = []
    for count in (400, 6000):
        command = [sys.executable, "-c", PEAK, str(tmp_path), str(count)]
        done = subprocess.run(command, env={**os.environ, WORKERS: "2"}, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 64


def test_an_epoch_that_is_left_leaves_no_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKERS, "2")
    batches = open_folder(root).train_batches(1, seed=0, epoch=0)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_is_an_error_of_the_data(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKERS, "2")
    batches = open_folder(root).train_batches(1, seed=0, epoch=0)
    next(batches)
    for worker in multiprocessing.active_children():
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
    time.sleep(0.5)  # a training step: nothing is raised in it
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    with pytest.raises(DataError, match=rf"has died .*Set {WORKERS}=1, or 0 for none"):
        list(batches)


def test_the_number_of_workers_is_the_users_or_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKERS, "7")
    assert worker_count() == 7
    monkeypatch.setenv(WORKERS, "many")
    with pytest.raises(OptionError, match=r"must be a whole number >= 0, .* got 'many'"):
        worker_count()
    monkeypatch.delenv(WORKERS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert worker_count() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert worker_count() == 2


# Odd pictures.


def wide(path: Path) -> None:
    Image.fromarray(np.full((4, 4), 0x8080, np.uint16)).save(path)


def turned(path: Path) -> None:
    """Taken with the camera on its side: the left half, red, belongs on top."""
    image = Image.new("RGB", (40, 20), BLUE)
    image.paste(RED, (0, 0, 20, 20))
    exif = image.getexif()
    exif[0x0112] = 6  # turn clockwise
    image.save(path, "PNG", exif=exif)


def bad_exif(path: Path) -> None:
    Image.new("RGB", (8, 8), RED).save(path, "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f nothing")


def worse_exif(path: Path) -> None:
    Image.new("RGB", (8, 8), RED).save(path, "PNG", exif=b"Exif\x00\x00nothing of the kind")


def clear_palette(path: Path) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, *RED])
    image.save(path, "PNG", transparency=bytes([0, 128]))


ODD: dict[str, tuple[Callable[[Path], object], tuple[int, int, int]]] = {
    "grey": (lambda path: Image.new("L", (30, 20), 90).save(path, "PNG"), (90, 90, 90)),
    "grey JPEG": (lambda path: Image.new("L", (30, 20), 90).save(path, "JPEG"), (90, 90, 90)),
    "grey and alpha": (lambda path: Image.new("LA", (9, 9), (90, 7)).save(path, "PNG"), (90, 90, 90)),
    "alpha": (lambda path: Image.new("RGBA", (9, 9), (*RED, 128)).save(path, "PNG"), RED),
    "inks": (lambda path: Image.new("CMYK", (9, 9), (0, 255, 255, 0)).save(path, "JPEG"), RED),
    "a palette": (lambda path: Image.new("P", (9, 9), RED).save(path, "PNG"), RED),
    "a palette with alpha": (clear_palette, RED),
    "black and white": (lambda path: Image.new("1", (9, 9), 1).save(path, "PNG"), (255, 255, 255)),
    "16 bits": (wide, (128, 128, 128)),
    "one pixel": (lambda path: Image.new("RGB", (1, 1), RED).save(path, "PNG"), RED),
    "a line": (lambda path: Image.new("RGB", (300, 1), RED).save(path, "PNG"), RED),
    "a bad note": (bad_exif, RED),
    "a worse note": (worse_exif, RED),
    "on its side": (turned, RED),
    "another format": (lambda path: Image.new("RGB", (9, 9), RED).save(path, "WEBP", lossless=True), RED),
    "moving": (lambda path: Image.new("RGB", (9, 9), RED).save(path, "GIF"), RED),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_pictures_are_read(name: str, tmp_path: Path) -> None:
    write, colour = ODD[name]
    write_folder(tmp_path)
    write(tmp_path / "val" / "cats" / "00.png")
    x, _ = next(open_folder(tmp_path, broken="refuse").test_batches(1))
    assert (x[0, :, 20, -20].int() - torch.tensor(colour)).abs().max() <= 2
    if name == "on its side":
        assert x[0, :, -20, 20].tolist() == list(BLUE)  # below


def truncated(path: Path) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "JPEG")
    path.write_bytes(buffer.getvalue()[:700])


BREAK: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "a page": lambda path: path.write_text("<html>404</html>"),
    "truncated": truncated,
    "half a PNG": lambda path: path.write_bytes(path.read_bytes()[:40]),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", BREAK)
def test_a_broken_file_is_named_and_refused(
    name: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BREAK[name](write_folder(tmp_path) / "train" / "dogs" / "03.png")
    monkeypatch.setenv(WORKERS, str(workers))
    with pytest.raises(DataError, match=r"^`folder`: .*train/dogs/03\.png must be a whole image file: .*\.$"):
        epoch(open_folder(tmp_path))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_named_and_skipped(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training the next file takes its place, so that batches keep their size; in a test it is left out."""
    whole = write_folder(tmp_path)
    for file in ("train/dogs/03.png", "train/dogs/09.png", "val/cats/01.png"):
        (whole / file).write_bytes(b"")
    monkeypatch.setenv(WORKERS, str(workers))
    data = open_folder(whole, broken="skip").on(torch.device("cpu"))
    with pytest.warns(UserWarning, match=r"`folder`: train/dogs/0\d.png is broken, and skipped"):
        x, y = epoch(data)
    found = sorted((int(label), int(green) // 10) for label, green in zip(y, x[:, 1, 9, 9], strict=True))
    cats = [0, *range(N)]  # the first one of all stands in for the last one, too
    assert found == [(0, i) for i in cats] + [(1, i) for i in (0, 1, 2, 4, 4, 5, 6, 7, 8)]
    with pytest.warns(UserWarning, match="val/cats/01.png"):
        tested = torch.cat([y for _, y in data.test_batches(4)])
    assert tested.tolist() == [0] * (TEST - 1) + [1] * TEST
    assert sorted(data.broken) == ["train/dogs/03.png", "train/dogs/09.png", "val/cats/01.png"]
    epoch(data, epoch=1)  # named once: no further warning
    assert open_folder(whole, broken="skip").broken == ()


def test_nothing_but_broken_files_is_an_error(tmp_path: Path) -> None:
    for path in write_folder(tmp_path).rglob("*.png"):
        path.write_bytes(b"")
    data = open_folder(tmp_path, broken="skip")
    with pytest.raises(DataError, match=f"and the {STAND_INS - 1} files after it are broken"):
        epoch(data)
    with pytest.warns(UserWarning, match="broken"), pytest.raises(DataError, match="all 10 that were read are broken"):
        list(data.test_batches(4))


def test_a_file_that_is_gone_is_never_skipped(tmp_path: Path) -> None:
    """A disk that is gone would otherwise be a set of one picture."""
    data = open_folder(write_folder(tmp_path), broken="skip")
    (tmp_path / "train" / "cats" / "04.png").unlink()
    with pytest.raises(DataError, match=r"train/cats/04\.png is missing"):
        epoch(data)


# What is wrong with a folder.


@pytest.mark.parametrize(
    ("remove", "words"),
    [("train", "must hold"), ("val", "val is missing"), ("train/dogs", "has classes that .* has not: dogs")],
)
def test_what_is_wrong_with_folders_is_named(remove: str, words: str, tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / remove).rename(tmp_path / "away")
    with pytest.raises(DataError, match=words):
        open_folder(tmp_path)


def test_empty_folders_and_hidden_files_are_no_images(tmp_path: Path) -> None:
    for part in ("train/cats", "val/cats"):
        (tmp_path / part).mkdir(parents=True)
        (tmp_path / part / "._a.jpg").touch()
    with pytest.raises(DataError, match=r"train must hold <class>/.*no image was found"):
        open_folder(tmp_path)


def test_wrong_words_are_named(root: Path) -> None:
    with pytest.raises(OptionError, match="broken must be one of refuse, skip, got 'mend'"):
        open_folder(root, broken="mend")
    with pytest.raises(OptionError, match="broken belongs to data folder; digits"):
        open_source("digits", broken="skip")


# Trained on.

TRIAL = Trial(data="folder", model="resnet18", width=4, epochs=2, batch=8, milestones=())


def test_a_wrong_number_of_workers_is_told_before_anything_is_recorded(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an epoch it would be a failed training, for ever."""
    monkeypatch.setenv(WORKERS, "many")
    store, trial = Store(tmp_path / "records"), Trial(data="folder", model="resnet18", width=4, epochs=1, batch=2)
    with pytest.raises(OptionError, match=f"{WORKERS}.*whole number"):
        run_trial(trial, store, data=root, device="cpu")
    assert store.trials() == []


def test_a_network_is_trained_on_a_folder_and_goes_on_where_it_was(root: Path, tmp_path: Path) -> None:
    from spectralgrad_lab.deadline import Deadline, OutOfTime

    whole = run_trial(TRIAL, Store(tmp_path / "whole"), data=root, device="cpu")
    assert (whole.status, [line["step"] for line in whole.epochs]) == ("finished", [3, 6])
    store = Store(tmp_path / "parts")
    with pytest.raises(OutOfTime):
        run_trial(TRIAL, store, data=root, device="cpu", deadline=Deadline(0))
    parts = run_trial(TRIAL, store, data=root, device="cpu")
    for name in ("train_loss", "test_loss"):
        assert [line[name] for line in parts.epochs] == [line[name] for line in whole.epochs]


@pytest.mark.filterwarnings("ignore:`folder`:UserWarning")
def test_broken_changes_what_a_training_does_and_the_record_names_what_was_skipped(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pictures")
    (folder / "val" / "dogs" / "04.png").write_bytes(b"")
    store = Store(tmp_path / "records")
    with pytest.raises(DataError, match=r"dogs/04\.png must be a whole image file"):
        run_trial(TRIAL, store, data=folder, device="cpu")
    assert store.outcome(TRIAL) is None  # not a training that failed
    skipping = replace(TRIAL, broken="skip")
    outcome = run_trial(skipping, store, data=folder, device="cpu")
    assert outcome.status == "finished"
    assert [line["broken"] for line in outcome.epochs] == [["val/dogs/04.png"]] * 2
    wrong = outcome.epochs[-1]["test_error"] * (2 * TEST - 1) / 100  # of nine images
    assert wrong == pytest.approx(round(wrong), abs=1e-6)
    (folder / "val" / "dogs" / "04.png").write_bytes((folder / "val" / "dogs" / "03.png").read_bytes())
    assert run_trial(TRIAL, store, data=folder, device="cpu").status == "finished"  # mended: the same command goes on


@pytest.mark.skipif(not (SHARED / "artworks").is_dir(), reason="the artworks are not here")
def test_real_photographs_and_paintings_make_a_data_set(tmp_path: Path) -> None:
    for name in ("monet", "photo"):
        files = sorted((SHARED / "artworks" / name).glob("*.jpg"))[:8]
        for part, chosen in (("train", files[:6]), ("val", files[6:])):
            (tmp_path / part / name).mkdir(parents=True)
            for file in chosen:
                (tmp_path / part / name / file.name).write_bytes(file.read_bytes())
    x, y = epoch(open_folder(tmp_path))
    assert y.sort().values.tolist() == [0] * 6 + [1] * 6
    assert 20 < float(x.double().std()) < 128  # real pictures have contrast

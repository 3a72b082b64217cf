"""CIFAR's official layout, and what a file that is not official does: nothing, with a clear error."""

import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from lab_support.shared_data import SHARED
from spectralgrad_lab.data import DataError, load, pickle_machine
from spectralgrad_lab.data.dataset import VARIABLE
from spectralgrad_lab.data.known import require_known

N = 20  # images a file
ALL: dict[str, Any] = {"train_samples": 10**6, "test_samples": 10**6}  # all there are: these sets are not the public ones


def content(n: int, seed: int, classes: int, key: bytes) -> dict[bytes, Any]:
    source = np.random.default_rng(seed)
    labels = source.integers(0, classes, n).tolist()
    return {b"batch_label": b"a batch", key: labels, b"data": source.integers(0, 256, (n, 3072), dtype=np.uint8)}


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes texts and bytes as Python 2 did, by which the official files were made."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_binary(self, x: Any) -> None:
        raw = x.encode("latin1") if isinstance(x, str) else x
        self.write(b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw)
        self.memoize(x)

    dispatch[bytes] = dispatch[str] = save_binary


def as_python2(x: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(x)
    return buffer.getvalue()


WRITERS: dict[str, Callable[[Any], bytes]] = {
    "python 2": as_python2,
    "protocol 2": lambda x: pickle.dumps(x, protocol=2),
    "protocol 4": lambda x: pickle.dumps(x, protocol=4),
}


def write_cifar10(root: Path, write: Callable[[Any], bytes] = WRITERS["protocol 4"]) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for seed, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        (folder / name).write_bytes(write(content(N, seed, 10, b"labels")))
    return folder


@pytest.mark.parametrize("writer", WRITERS)
def test_official_layout_is_read_whoever_wrote_it(writer: str, tmp_path: Path) -> None:
    write_cifar10(tmp_path, WRITERS[writer])
    data = load("cifar10", tmp_path, **ALL)
    assert data.train_x.shape == (5 * N, 3, 32, 32)
    assert data.train_x.dtype == torch.uint8
    want = [content(N, seed, 10, b"labels") for seed in range(6)]
    rows = np.concatenate([part[b"data"] for part in want])
    assert torch.equal(torch.cat([data.train_x, data.test_x]).flatten(1), torch.from_numpy(rows))
    assert data.train_y.tolist() == [label for part in want[:5] for label in part[b"labels"]]
    assert data.test_y.tolist() == want[5][b"labels"]
    assert (data.classes, data.channels, data.size) == (10, 3, 32)
    planes = data.train_x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(data.mean, planes.mean(1))
    torch.testing.assert_close(data.std, planes.std(1, correction=0))


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for seed, name in enumerate(("train", "test")):
        extra = {b"coarse_labels": [0] * N, b"filenames": [b"a.png"] * N}
        (folder / name).write_bytes(pickle.dumps(content(N, seed, 100, b"fine_labels") | extra, protocol=2))
    data = load("cifar100", tmp_path, **ALL)
    assert data.classes == 100
    assert data.train_y.tolist() == content(N, 0, 100, b"fine_labels")[b"fine_labels"]
    assert torch.equal(load("cifar100", folder, **ALL).train_x, data.train_x)  # the folder itself will do


def test_directory_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert len(load("cifar10", **ALL).test_y) == N
    with pytest.raises(DataError, match="must hold cifar-10-batches-py"):
        load("cifar10", tmp_path / "cifar-10-batches-py" / "elsewhere")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(DataError, match=rf"Pass --data DIR .*, or set {VARIABLE}=DIR\. Scale smoke needs no data"):
        load("cifar10")


def test_a_part_is_always_the_same(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    whole, part = load("cifar10", tmp_path, **ALL), load("cifar10", tmp_path, train_samples=30, test_samples=5)
    assert (len(part.train_y), len(part.test_y)) == (30, 5)
    assert torch.equal(part.train_x, load("cifar10", tmp_path, train_samples=30, test_samples=9).train_x)
    found = [int((whole.train_x == image).flatten(1).all(1).nonzero()[0, 0]) for image in part.train_x]
    assert len(set(found)) == 30
    assert found != sorted(found)  # from all files, not the first ones
    assert part.train_y.tolist() == whole.train_y[found].tolist()


# Files that are not official.

marks: list[str] = []  # what a pickle that runs something would leave here


def leave_mark(*_: Any) -> None:
    marks.append("ran")


class Calls:
    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


HOSTILE: dict[str, Callable[[], Any]] = {
    "a function": lambda: Calls(leave_mark),
    "inside the data": lambda: {b"data": Calls(leave_mark), b"labels": []},
    "a command": lambda: Calls(os.system, "exit 1"),
    "an evaluation": lambda: Calls(eval, "1 + 1"),
    "an import": lambda: Calls(__import__, "os"),
    "an attribute": lambda: Calls(getattr, {}, "clear"),
    "another array type": lambda: {b"data": np.array([Calls(leave_mark)], dtype=object)},
    "floats": lambda: {b"data": np.zeros((2, 3072))},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_runs_nothing(name: str, tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    raw = pickle.dumps(HOSTILE[name](), protocol=2)
    (folder / "data_batch_3").write_bytes(raw)
    marks.clear()
    with pytest.raises(DataError, match="data_batch_3 must be an official CIFAR file"):
        load("cifar10", tmp_path)
    assert marks == []


def test_hostile_pickles_are_live() -> None:
    """The control: Python's own reader runs them."""
    for name in ("a function", "inside the data", "another array type"):
        marks.clear()
        pickle.loads(pickle.dumps(HOSTILE[name](), protocol=2))
        assert marks == ["ran"], name


RAW = {
    "a shape of its own choice": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(L1000000000000L\ntS'b'\ntR.",
    "an array made directly": b"cnumpy\nndarray\n((L1000000000000L\ntt\x52.",
    "state that is no state": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(S'x'\ntb.",
    "a wrong size": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    b"(I1\n(I2\nI9\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI00\nS'x'\ntb.",
    "another codec": b"c_codecs\nencode\n(Vabc\nVrot13\ntR.",
    "an object elsewhere": b"Pelsewhere\n.",
    "an extension": b"\x82\x01.",
    "not a pickle": b"\x89PNG\r\n",
    "nothing": b"",
    "a list": b"(lp0\n.",
}


@pytest.mark.parametrize("name", RAW)
def test_crafted_bytes_are_refused(name: str, tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "test_batch").write_bytes(RAW[name])
    with pytest.raises(DataError, match="test_batch must") as caught:
        load("cifar10", tmp_path)
    assert "Unpack cifar-10-python.tar.gz again" in str(caught.value)


ENCODE = b"c_codecs\nencode\n"
BUILDS = {
    "the defaults of a function": ENCODE + b"(N}Vx\nVy\nstb.",
    "an attribute of a function": ENCODE + b"}V__defaults__\n(Vrot13\ntsb.",
    "a slot of a class": b"cnumpy\ndtype\n(N}V__init__\nNstb.",
    "a class": b"cnumpy\nndarray\n}Vx\nI1\nsb.",
}


@pytest.mark.parametrize("name", BUILDS)
def test_build_changes_nothing(name: str, tmp_path: Path) -> None:
    """Python's reader sets attributes of whatever a name stands for: here that is a constant."""
    folder = write_cifar10(tmp_path)
    (folder / "test_batch").write_bytes(BUILDS[name])
    before = {each: dict(vars(each)) for each in (pickle_machine.ByteArray, pickle_machine.ByteType)}
    with pytest.raises(DataError, match=r"test_batch must be an official .* \(an array that is not one of bytes\)"):
        load("cifar10", tmp_path)
    assert {each: dict(vars(each)) for each in before} == before


def test_a_tuple_of_tuples_of_tuples_takes_no_time(tmp_path: Path) -> None:
    """2^200 leaves, shared: neither hashed nor shown."""
    folder = write_cifar10(tmp_path)
    laughs = b")" + b"".join(b"q%c(h%ch%ct" % (i, i, i) for i in range(200))
    for tail in (b".", b"}h\x00N(" + laughs + b"Nu.", b"\x85R."):
        (folder / "test_batch").write_bytes(laughs + tail)
        with pytest.raises(DataError, match="test_batch must"):
            load("cifar10", tmp_path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.999])
def test_a_truncated_file_is_named(part: float, tmp_path: Path) -> None:
    path = write_cifar10(tmp_path) / "data_batch_2"
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(DataError, match=r"data_batch_2 must be .* damaged .* Unpack"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({b"data": np.zeros((N, 100), dtype=np.uint8)}, r"N x 3072 bytes, got \(20, 100\)"),
        ({b"data": [1, 2]}, "got list"),
        ({b"labels": [0] * (N - 1)}, "must hold 20 labels, one for each image, got 19"),
        ({b"labels": None}, "got none"),
        ({b"labels": [10] * N}, "labels from 0 to 9"),
        ({b"labels": [True] * N}, "labels from 0 to 9"),
    ],
)
def test_wrong_content_is_named(change: dict[bytes, Any], words: str, tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps(content(N, 0, 10, b"labels") | change, protocol=4))
    with pytest.raises(DataError, match=words):
        load("cifar10", tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (write_cifar10(tmp_path) / "data_batch_4").unlink()
    with pytest.raises(DataError, match=r"data_batch_4 is missing\. Unpack cifar-10-python\.tar\.gz again"):
        load("cifar10", tmp_path)


# Sheets and folders of PNGs.


def images_of(n: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)


def sheets_of(images: np.ndarray[Any, Any]) -> dict[str, Any]:
    """As shared/data/cifar100.py packs them: 10 x 10 images a sheet, row by row."""
    blobs = []
    for part in np.split(images, len(images) // 100):
        sheet = np.vstack([np.hstack(list(row)) for row in part.reshape(10, 10, 32, 32, 3)])
        buffer = io.BytesIO()
        Image.fromarray(sheet).save(buffer, "WEBP", lossless=True)
        blobs.append(buffer.getvalue())
    return {"": np.frombuffer(b"".join(blobs), np.uint8), "_off": np.cumsum([0, *map(len, blobs)])}


def write_sheets(folder: Path, parts: int, classes: int) -> Path:
    """100 images a part, and 100 for test in the last one; part i starts with label i."""
    folder.mkdir(parents=True)
    for part in range(1, parts + 1):
        held = {f"train{key}": value for key, value in sheets_of(images_of(100, part)).items()}
        held["y_train"] = (np.arange(100) + part).astype(np.uint8) % classes
        if part == parts:
            held |= {f"test{key}": value for key, value in sheets_of(images_of(100, 0)).items()}
            held["y_test"] = np.arange(100).astype(np.uint8) % classes
        np.savez(folder / f"part{part}.npz", **held)
    return folder


@pytest.mark.parametrize(("name", "parts", "classes"), [("cifar10", 2, 10), ("cifar100", 3, 100)])
def test_sheets_are_read_in_the_order_of_their_images(name: str, parts: int, classes: int, tmp_path: Path) -> None:
    write_sheets(tmp_path / name, parts, classes)
    data = load(name, tmp_path, **ALL)
    want = np.concatenate([images_of(100, part) for part in range(1, parts + 1)])
    assert torch.equal(data.train_x, torch.from_numpy(want).permute(0, 3, 1, 2))
    assert torch.equal(data.test_x, torch.from_numpy(images_of(100, 0)).permute(0, 3, 1, 2))
    assert data.train_y.tolist() == [(i + part) % classes for part in range(1, parts + 1) for i in range(100)]
    assert data.test_y.tolist() == [i % classes for i in range(100)]


def spoil_sheet(path: Path, **changes: Any) -> None:
    with np.load(path) as held:
        content = {**held, **changes}
    np.savez(path, **{key: value for key, value in content.items() if value is not None})


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: path.unlink(), r"part2\.npz is missing\. Pack .* part1\.npz, part2\.npz"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:500]), "part2.npz must be a whole .npz file"),
    "no labels": (lambda path: spoil_sheet(path, y_train=None), "must hold train, train_off and y_train"),
    "too few labels": (lambda path: spoil_sheet(path, y_train=np.zeros(99, np.uint8)), "must hold 100 labels"),
    "a label too far": (lambda path: spoil_sheet(path, y_train=np.full(100, 10)), "from 0 to 9.*from 10 to 10"),
    "objects": (lambda path: spoil_sheet(path, y_train=np.array([leave_mark], dtype=object)), "whole .npz file"),
    "no sheet": (lambda path: spoil_sheet(path, train=np.zeros(300, np.uint8)), "must hold sheets of 320 x 320"),
    "floats": (lambda path: spoil_sheet(path, train=np.zeros(300)), "must hold bytes, offsets and labels"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_spoilt_sheets_are_named(how: str, tmp_path: Path) -> None:
    spoil, words = SPOILT[how]
    spoil(write_sheets(tmp_path / "cifar10", 2, 10) / "part2.npz")
    with pytest.raises(DataError, match=words):
        load("cifar10", tmp_path, **ALL)


def write_pngs(folder: Path) -> Path:
    for part, count in (("train", 2), ("test", 1)):
        for label in range(10):
            (folder / part / f"class{label}").mkdir(parents=True)
            for i in range(count):
                image = Image.fromarray(images_of(1, 10 * label + i)[0])
                image.save(folder / part / f"class{label}" / f"{i}.png")
    return folder


def test_folders_of_pngs_are_read_with_classes_by_name(tmp_path: Path) -> None:
    folder = write_pngs(tmp_path / "cifar10")
    data = load("cifar10", tmp_path, **ALL)
    assert data.train_y.tolist() == [label for label in range(10) for _ in range(2)]
    assert data.test_y.tolist() == list(range(10))
    assert torch.equal(data.train_x[3], torch.from_numpy(images_of(1, 11)[0]).permute(2, 0, 1))
    shutil.rmtree(folder / "test" / "class4")
    with pytest.raises(DataError, match=r"test/class4 is missing\. Copy"):
        load("cifar10", tmp_path, **ALL)
    shutil.rmtree(folder / "train" / "class4")
    with pytest.raises(DataError, match="must hold 10 folders, one a class, got 9"):
        load("cifar10", tmp_path, **ALL)


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="the real CIFAR-10 is not here")
def test_the_real_one_is_the_known_one(tmp_path: Path) -> None:
    subprocess.run([sys.executable, SHARED / "cifar10" / "unpack.py", tmp_path], check=True, capture_output=True)
    data = load("cifar10", tmp_path)
    assert data.train_x.shape == (50_000, 3, 32, 32)
    assert data.test_x.shape == (10_000, 3, 32, 32)
    assert torch.bincount(data.train_y).tolist() == [5000] * 10
    assert torch.bincount(data.test_y).tolist() == [1000] * 10
    known = torch.tensor([[0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]])  # as everybody has them
    torch.testing.assert_close(torch.stack([data.mean, data.std]).float() / 255, known, atol=6e-5, rtol=0)
    packed = load("cifar10", SHARED)  # the same in sheets
    assert torch.equal(packed.train_x, data.train_x)
    assert torch.equal(packed.test_y, data.test_y)
    for part in ("train", "test"):
        x, y = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
        require_known("cifar10", part, x, y, "")
        for wrong in (x.flip(1), x[:, [1, 0, 2]], x // 2, x.view(-1, 32, 32, 3).permute(0, 3, 1, 2)):
            with pytest.raises(DataError, match="packed in another order or scale"):
                require_known("cifar10", part, wrong, y, "")

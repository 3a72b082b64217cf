"""CIFAR's official layout, and what a file that is not official does: nothing, with a clear error."""

import io
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from lab_support.shared_data import SHARED
from spectralgrad_lab.data import DataError, load
from spectralgrad_lab.data.dataset import VARIABLE
from spectralgrad_lab.data.pickles import ADMITTED

N = 20  # images a file


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
    data = load("cifar10", tmp_path)
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
    data = load("cifar100", tmp_path)
    assert data.classes == 100
    assert data.train_y.tolist() == content(N, 0, 100, b"fine_labels")[b"fine_labels"]
    assert torch.equal(load("cifar100", folder).train_x, data.train_x)  # the folder itself will do


def test_directory_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert len(load("cifar10").test_y) == N
    with pytest.raises(DataError, match="must hold cifar-10-batches-py"):
        load("cifar10", tmp_path / "cifar-10-batches-py" / "elsewhere")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(DataError, match=f"Pass --data DIR, or set {VARIABLE}=DIR"):
        load("cifar10")


def test_a_part_is_always_the_same(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    whole, part = load("cifar10", tmp_path), load("cifar10", tmp_path, train_samples=30, test_samples=5)
    assert (len(part.train_y), len(part.test_y)) == (30, 5)
    assert torch.equal(part.train_x, load("cifar10", tmp_path, train_samples=30).train_x)
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


def test_admitted_names_are_inert() -> None:
    """Nothing of numpy's, and no builtin, is handed to a pickle."""
    assert {value.__module__ for value in ADMITTED.values()} == {"spectralgrad_lab.data.pickles"}


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

"""Artworks: folders of pictures with a split that never changes, and procedural pictures that need no file."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from lab_support.shared_data import SHARED
from spectralgrad.errors import OptionError
from spectralgrad_lab.data import DataError
from spectralgrad_lab.data.artworks import DOMAINS, embedded_artworks, known_domains, load_artworks


def write(root: Path, domain: str, count: int, size: tuple[int, int] = (20, 16)) -> None:
    """Pictures of one grey each: its value tells which file it was."""
    (root / domain).mkdir(parents=True)
    for index in range(count):
        Image.new("RGB", size, (5 * index,) * 3).save(root / domain / f"{index:03d}.jpg", quality=95)


def values(pictures: Tensor) -> list[int]:
    return [round(float(x.float().mean()) / 5) for x in pictures]


def test_the_split_is_fixed_and_parts_nothing_twice(tmp_path: Path) -> None:
    write(tmp_path / "artworks", "photo", 40)
    write(tmp_path / "artworks", "monet", 10)
    data = load_artworks(tmp_path, size=16, domains=("photo", "monet"))
    assert list(data.train) == list(data.test) == ["photo", "monet"]
    assert data.train["photo"].shape == (34, 3, 16, 16)
    assert data.train["photo"].dtype == torch.uint8
    assert data.test["monet"].shape == (2, 3, 16, 16)
    train, test = values(data.train["photo"]), values(data.test["photo"])
    assert sorted(train + test) == list(range(40))
    assert test == [4, 16, 21, 5, 11, 14]  # written down: another split would make every measured error incomparable
    again = load_artworks(tmp_path / "artworks", size=16, domains=("photo",))  # the folder itself serves as well
    assert torch.equal(again.test["photo"], data.test["photo"])


def test_the_environment_variable_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "ukiyoe", 4)
    monkeypatch.setenv("SPECTRALGRAD_DATA", str(tmp_path))
    assert load_artworks(size=8, domains=("ukiyoe",)).train["ukiyoe"].shape == (3, 3, 8, 8)
    monkeypatch.delenv("SPECTRALGRAD_DATA")
    with pytest.raises(DataError, match=r"needs a directory with artworks/ukiyoe/ with \*.jpg in each. Pass --data DIR"):
        load_artworks(size=8, domains=("ukiyoe",))


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    write(tmp_path, "photo", 3)
    with pytest.raises(DataError, match="must hold artworks/photo, vangogh, monet, ukiyoe/"):
        load_artworks(tmp_path)
    write(tmp_path, "monet", 1)
    with pytest.raises(DataError, match=r"monet must hold at least two pictures .* it has 1"):
        load_artworks(tmp_path, domains=("monet",))
    (tmp_path / "photo" / "001.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"001.jpg must be a whole image file"):
        load_artworks(tmp_path, domains=("photo",))
    for wrong in ("..", "a/b", ""):
        with pytest.raises(
            OptionError, match="domains must be names of folders, such as photo, vangogh, monet, ukiyoe, got"
        ):
            load_artworks(tmp_path, domains=(wrong,))
    with pytest.raises(DataError, match="must hold artworks/cezanne/"):
        load_artworks(tmp_path, domains=("cezanne",))
    with pytest.raises(OptionError, match="size must be a whole number >= 1, got 0"):
        load_artworks(tmp_path, size=0, domains=("photo",))


def test_any_folder_is_a_domain_and_cezanne_is_looked_for(tmp_path: Path) -> None:
    for name in DOMAINS:
        write(tmp_path, name, 2)
    assert known_domains(tmp_path) == DOMAINS
    write(tmp_path, "cezanne", 4)
    write(tmp_path, "hokusai", 2)
    assert known_domains(tmp_path) == (*DOMAINS, "cezanne")
    found = load_artworks(tmp_path, 8, ("photo", "cezanne", "hokusai"))
    assert {name: len(found.train[name]) for name in found.train} == {"photo": 1, "cezanne": 3, "hokusai": 1}


@pytest.mark.skipif(not (SHARED / "artworks").is_dir(), reason="the artworks are not here")
def test_the_real_ones() -> None:
    data = load_artworks(SHARED, size=32)
    counts = {name: (len(data.train[name]), len(data.test[name])) for name in DOMAINS}
    assert counts == {"photo": (595, 105), "vangogh": (340, 60), "monet": (255, 45), "ukiyoe": (357, 63)}
    for name in DOMAINS:
        assert float(data.train[name].float().std()) > 20, name


def test_embedded_pictures_are_the_same_each_time_and_differ_from_each_other() -> None:
    data, again = embedded_artworks(32, 10), embedded_artworks(32, 10)
    for name in DOMAINS:
        assert data.train[name].shape == (8, 3, 32, 32)
        assert data.test[name].shape == (2, 3, 32, 32)
        assert torch.equal(data.train[name], again.train[name])
        every = torch.cat([data.train[name], data.test[name]]).flatten(1).float()
        distances = torch.cdist(every, every) / every.shape[1] ** 0.5  # root mean square, of 255
        assert float(distances[~torch.eye(10, dtype=torch.bool)].min()) > 10, name


def statistics(pictures: Tensor) -> Tensor:
    """Mean and covariance of the colours, and the mean size of steps between pixels: (N, 3 + 9 + 2)."""
    x = pictures.float() / 255
    flat = x.flatten(2)
    centred = flat - flat.mean(2, keepdim=True)
    covariance = centred @ centred.mT / flat.shape[2]
    steps = torch.stack([x.diff(dim=axis).abs().mean((1, 2, 3)) for axis in (2, 3)], 1)
    return torch.cat([flat.mean(2), covariance.flatten(1) * 5, steps], 1)


def test_each_domain_has_colours_and_a_texture_of_its_own() -> None:
    """The nearest mean of simple statistics tells held-out pictures' domains: there is a style to transfer."""
    data = embedded_artworks(64, 24)
    centres = torch.stack([statistics(data.train[name]).mean(0) for name in DOMAINS])
    for label, name in enumerate(DOMAINS):
        assert torch.cdist(statistics(data.test[name]), centres).argmin(1).eq(label).all(), name
        assert 0.05 < float(data.train[name].float().mean() / 255) < 0.95


def test_photographs_are_smooth_and_paintings_are_not() -> None:
    data = embedded_artworks(64, 24)
    steps = {name: float(data.train[name].float().diff(dim=3).abs().mean()) for name in DOMAINS}
    assert all(steps[name] > 1.25 * steps["photo"] for name in DOMAINS[1:]), steps


def test_sizes_that_make_no_picture_are_refused() -> None:
    with pytest.raises(OptionError, match="size must be a whole number >= 8, got 4"):
        embedded_artworks(4)
    with pytest.raises(OptionError, match="count must be a whole number >= 2, got 1"):
        embedded_artworks(count=1)
    assert embedded_artworks(8, 2).train["monet"].shape == (1, 3, 8, 8)

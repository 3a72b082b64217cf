"""Batches on a device: every image once, an order by (seed, epoch), crops and mirrors, shares of ranks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from spectralgrad_lab.data import Dataset, Epoch
from spectralgrad_lab.data.batches import crop, placed, standardised
from spectralgrad_lab.data.dataset import mean_and_std, subset

N, SIZE = 50, 16
X = torch.randint(1, 256, (N, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0)).to(torch.uint8)  # no zeros
Y = torch.arange(N)


def one(seed: int = 0, epoch: int = 0, **options: Any) -> Epoch:
    return Epoch(X, Y, seed=seed, epoch=epoch, **{"augment": True, **options})


def whole(epoch: Epoch, size: int = 16, **options: Any) -> tuple[Tensor, Tensor]:
    parts = list(epoch.batches(size, **options))
    return torch.cat([x for x, _, _ in parts]), torch.cat([y for _, y, _ in parts])


def test_every_image_comes_once_in_batches_of_the_size() -> None:
    parts = list(one(augment=False).batches(16))
    assert [len(y) for _, y, _ in parts] == [16, 16, 16, 2]
    assert [samples for _, _, samples in parts] == [16, 16, 16, 2]
    x, y = whole(one(augment=False))
    assert sorted(y.tolist()) == list(range(N))
    assert y.tolist() != list(range(N))
    assert torch.equal(x, X[y])


def test_order_and_crops_depend_on_seed_and_epoch_alone() -> None:
    x, y = whole(one(3, 7))
    torch.manual_seed(0)
    again = whole(one(3, 7))
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])
    assert torch.equal(whole(one(3, 7), size=5)[0], x)  # not on the size of a batch
    for other in (one(3, 8), one(4, 7)):
        assert not torch.equal(whole(other)[1], y)


def reference(image: Tensor, down: int, right: int, mirrored: bool) -> Tensor:
    """One image, the long way."""
    border = SIZE // 8
    wide = torch.zeros(3, SIZE + 2 * border, SIZE + 2 * border, dtype=torch.uint8)
    wide[:, border : border + SIZE, border : border + SIZE] = image
    square = wide[:, down : down + SIZE, right : right + SIZE]
    return square.flip(-1) if mirrored else square


def test_each_image_has_its_own_crop_and_mirror() -> None:
    epoch = one()
    x, y = whole(epoch)
    for i in range(N):
        down, right = epoch.shift[:, i].tolist()
        assert torch.equal(x[i], reference(X[y[i]], down, right, bool(epoch.mirrored[i])))
    assert epoch.shift.unique().tolist() == [0, 1, 2, 3, 4]  # by up to an eighth of 16, both ways
    assert 0.2 < float(epoch.mirrored.double().mean()) < 0.8


def test_digits_are_moved_but_not_mirrored() -> None:
    epoch = one(flip=False)
    x, y = whole(epoch)
    assert not bool(epoch.mirrored.any())
    assert not torch.equal(x, X[y])


@pytest.mark.parametrize("world", [2, 3, 20])
def test_ranks_share_each_batch(world: int) -> None:
    want = list(one().batches(16))
    shares = [list(one().batches(16, rank, world)) for rank in range(world)]
    for step, (x, y, samples) in enumerate(want):
        assert torch.equal(torch.cat([share[step][0] for share in shares]), x)
        assert torch.equal(torch.cat([share[step][1] for share in shares]), y)
        assert all(share[step][2] == samples for share in shares)
        sizes = [len(share[step][1]) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def test_crop_at_the_corner_of_a_borderless_image_is_it() -> None:
    shift, mirrored = torch.zeros(2, N, dtype=torch.long), torch.zeros(N, dtype=torch.bool)
    assert torch.equal(crop(X, SIZE, shift, mirrored), X)
    assert torch.equal(crop(X, SIZE, shift, ~mirrored), X.flip(-1))


def dataset() -> Dataset:
    return Dataset(X, Y, X[:5], Y[:5], N, *mean_and_std(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standardised_images_have_mean_0_and_std_1(dtype: torch.dtype) -> None:
    x = standardised(X, dataset(), dtype)
    assert x.dtype == dtype
    assert x.is_contiguous()
    planes = x.transpose(0, 1).flatten(1)
    torch.testing.assert_close(planes.mean(1), torch.zeros(3, dtype=dtype), atol=1e-5, rtol=0)
    torch.testing.assert_close(planes.std(1, correction=0), torch.ones(3, dtype=dtype), atol=1e-5, rtol=0)


def test_a_channel_without_contrast_is_not_divided_by_zero() -> None:
    mean, std = mean_and_std(torch.full((4, 1, 2, 2), 9, dtype=torch.uint8))
    assert (float(mean), float(std)) == (9, 1)


def test_placing_on_the_cpu_changes_nothing() -> None:
    data = placed(dataset(), torch.device("cpu"))
    assert torch.equal(data.train_x, X)
    assert data.classes == N


def test_a_part_is_drawn_from_all() -> None:
    x, y = subset(X, Y, 10)
    assert torch.equal(x, X[y])
    assert y.max() > 10
    assert subset(X, Y, 10**6)[0] is X

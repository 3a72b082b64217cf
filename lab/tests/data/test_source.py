"""A data set in memory is a source of batches, as a streamed folder is."""

import pytest
import torch

from spectralgrad_lab.data import Dataset, Epoch, open_source
from spectralgrad_lab.data.dataset import mean_and_std

N, TEST = 50, 11
X = torch.randint(256, (N, 3, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
DATA = Dataset(X, torch.arange(N), X[:TEST], torch.arange(TEST), N, *mean_and_std(X), flip=False)


@pytest.mark.parametrize("augment", [True, False])
def test_an_epoch_in_memory_is_that_of_epoch(augment: bool) -> None:
    want = Epoch(X, DATA.train_y, seed=2, epoch=3, augment=augment, flip=False)
    for rank in (0, 1):
        ours = DATA.on(torch.device("cpu")).train_batches(16, seed=2, epoch=3, augment=augment, rank=rank, world=2)
        for (x, y, samples), (x2, y2, samples2) in zip(ours, want.batches(16, rank, 2), strict=True):
            assert torch.equal(x, x2)
            assert torch.equal(y, y2)
            assert samples == samples2


def test_what_does_not_fill_a_batch_can_be_left_out() -> None:
    for drop_last, sizes in ((False, [16, 16, 16, 2]), (True, [16, 16, 16])):
        batches = DATA.train_batches(16, seed=0, epoch=0, rank=1, world=2, drop_last=drop_last)
        assert [samples for _, _, samples in batches] == sizes


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_the_test_images_in_order(world: int) -> None:
    parts = [part for rank in range(world) for part in DATA.test_batches(4, rank=rank, world=world)]
    assert torch.equal(torch.cat([x for x, _ in parts]), DATA.test_x)
    assert torch.equal(torch.cat([y for _, y in parts]), DATA.test_y)
    assert max(len(y) for _, y in parts) <= 4


def test_counts_and_names() -> None:
    data = open_source("digits", train_samples=100)
    assert (data.train_count, data.test_count, data.classes, data.channels, data.size) == (100, 360, 10, 1, 8)
    assert data.broken == ()

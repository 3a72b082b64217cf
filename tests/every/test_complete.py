"""No public function is missing from the catalogue."""

import inspect

import pytest
import torch

import spectralgrad as sg
from support.catalogue import CASES, NO_MAPS, Case

ROOMS = {"": sg, "spd.": sg.spd, "nn.": sg.nn, "nn.functional.": sg.nn.functional, "orthogonal.": sg.orthogonal}
PUBLIC = {
    f"{room}{name}" for room, module in ROOMS.items() for name in module.__all__ if inspect.isfunction(getattr(module, name))
}


def missing(cases: list[Case]) -> set[str]:
    return PUBLIC - {case.function for case in cases} - NO_MAPS


def test_every_public_function_is_listed() -> None:
    assert missing(CASES) == set()
    assert PUBLIC | {"checks"} >= NO_MAPS
    assert {case.function for case in CASES} <= PUBLIC


def test_one_that_is_not_listed_would_be_found() -> None:
    assert missing([case for case in CASES if case.function != "pinv"]) == {"pinv"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_input_is_the_same_for_the_same_seed_and_batched_as_asked(case: Case) -> None:
    for dtype in (torch.float32, torch.complex128):
        x = case.input(2, dtype=dtype, seed=1)
        assert x.dtype == dtype
        assert torch.equal(x, case.input(2, dtype=dtype, seed=1))
        assert not torch.equal(x, case.input(2, dtype=dtype))
        assert x.shape == (2, *case.input().shape)

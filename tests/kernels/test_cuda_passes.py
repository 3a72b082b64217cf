"""The Triton kernels of the whitening layers on a GPU: accuracy, and the same bits twice."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels import affine, moments, tiles
from support import passes as twins
from support.gpu import error
from support.passes import CASES, NAMES, Case, compile_all, passes
from support.triton_kernels import far_apart

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]

LIMITS = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of results in that dtype
# Without centring the rounding is the mean's: the transposed product is looked at around a near mean only.
EACH = [(name, case) for case in CASES for name in NAMES if name != "transposed" or case.mean <= 1]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert tiles.has_triton(), "Triton comes with torch's CUDA builds for Linux"
    compile_all()


def as_tuple(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize(("name", "case"), EACH, ids=[f"{name} {case}" for name, case in EACH])
def test_a_pass(name: str, case: Case, record_property: Callable[[str, object], None]) -> None:
    """Every kernel against its twin, and against itself."""
    kernel, twin = passes(case)[name]
    got, again, want = as_tuple(kernel()), as_tuple(kernel()), as_tuple(twin())
    for a, b in zip(got, again, strict=True):
        assert torch.equal(a, b)
    if name == "moments":  # mean + rest relative to the spread, which is about 1; then the scatter
        of_mean = float((got[0].double() + got[1] - want[0].double() - want[1]).abs().max())
        found = max(of_mean, error(got[2], want[2]))
    else:
        found = max(map(error, got, want))
    record_property("error", found)
    assert found <= LIMITS[want[-1].dtype]


def test_beyond_32_bits() -> None:
    """One image with more than 2^31 numbers from its first to its last."""
    A, vector = torch.eye(3, device="cuda")[None].contiguous(), torch.ones(3, device="cuda")
    for x in far_apart(3, 5, device="cuda"):
        for got, want in zip(moments.grouped_moments(x, 1), twins.grouped_moments_twin(x, 1), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        for name, given in (("transform", (x, A, vector, None, vector)), ("combine", (x, x, A, A, vector, None, vector))):
            got, want = getattr(affine, name)(*given), getattr(twins, f"{name}_twin")(*given)
            assert error(got, want) <= LIMITS[x.dtype]

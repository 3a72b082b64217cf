"""Tangent vectors and back: by definition, inverse to each other, gradients at ties and at every scale."""

from typing import Any

import pytest
import scipy.linalg
import torch

import spectralgrad as sg
from spectralgrad.errors import NonFiniteError, OptionError
from support import cases
from support.spd import definite, hermitian

each_metric = pytest.mark.parametrize("metric", ["affine", "logeuclid"])
DTYPES = [torch.float64, torch.complex128]


@each_metric
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.ident)
@pytest.mark.parametrize("scale", [1.0, 2.0**600, 2.0**-600])
def test_one_is_the_inverse_of_the_other(metric: Any, dtype: torch.dtype, scale: float) -> None:
    A, B = definite(3, n=4, dtype=dtype, seed=1), definite(3, n=4, dtype=dtype, seed=2)
    T = sg.spd.log_map(A, B, metric)
    torch.testing.assert_close(sg.spd.exp_map(A, T, metric), B, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(
        sg.spd.exp_map(A, 0.3 * T, metric), sg.spd.geodesic(A, B, 0.3, metric), rtol=1e-11, atol=1e-11
    )
    torch.testing.assert_close(sg.spd.log_map(A * scale, B * scale, metric) / scale, T, rtol=1e-11, atol=1e-11)
    back = sg.spd.exp_map(A * scale, T * scale, metric) / scale
    torch.testing.assert_close(back, B, rtol=1e-10, atol=1e-10)
    far = sg.spd.log_map(A, B * scale, metric)  # of another scale: log B grows by log(scale) I
    along = sg.spd.log_map(A, A * 2.0, metric) / torch.log(torch.tensor(2.0, dtype=torch.float64))
    if metric == "affine":
        torch.testing.assert_close(
            far, T + along * torch.log(torch.tensor(scale, dtype=torch.float64)), rtol=1e-10, atol=1e-10
        )


def test_by_definition() -> None:
    A, B = definite(n=4, seed=1), definite(n=4, seed=2)
    want = A.numpy() @ scipy.linalg.logm(scipy.linalg.solve(A.numpy(), B.numpy()))
    torch.testing.assert_close(sg.spd.log_map(A, B), torch.from_numpy(want.real), rtol=1e-11, atol=1e-11)
    a = scipy.linalg.logm(A.numpy())
    _, along = scipy.linalg.expm_frechet(a, scipy.linalg.logm(B.numpy()) - a)
    torch.testing.assert_close(sg.spd.log_map(A, B, "logeuclid"), torch.from_numpy(along), rtol=1e-10, atol=1e-10)


@each_metric
@pytest.mark.parametrize("tie", [False, True])
def test_derivatives(metric: Any, tie: bool) -> None:
    A = torch.diag(torch.tensor([2.0, 2.0, 0.5], dtype=torch.float64)) if tie else definite(n=3, seed=1)
    B = torch.diag(torch.tensor([3.0, 3.0, 3.0], dtype=torch.float64)) if tie else definite(n=3, seed=2)
    given = [z.requires_grad_() for z in (A, B)]
    for f in (sg.spd.log_map, sg.spd.exp_map):

        def of(x: Any, y: Any, f: Any = f) -> Any:
            return f(hermitian(x), hermitian(y), metric)

        assert torch.autograd.gradcheck(of, given)
        if metric == "affine":
            assert torch.autograd.gradgradcheck(of, given)


@each_metric
def test_bad_input(metric: Any) -> None:
    A = definite(n=3)
    for f in (sg.spd.log_map, sg.spd.exp_map):
        with pytest.raises(OptionError, match='metric must be "affine" or "logeuclid", got'):
            f(A, A, "bures")
    with pytest.raises(NonFiniteError, match=r"`spd\.exp_map`: the point is beyond the range .* Take a shorter T"):
        sg.spd.exp_map(A, 1e6 * A, metric)

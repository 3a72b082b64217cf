"""Bad input: who, what was needed, what came, what to do."""

from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import DefinitenessError, DtypeError, NonFiniteError, OptionError, ShapeError, SymmetryError
from support.spd import METRICS, definite

A = definite(n=3)
X = definite(4, n=3)
INDEFINITE = torch.diag(torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64))
SINGULAR = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64))
NAN = A.clone().fill_(float("nan"))
ASKEW = A + torch.ones(3, 3, dtype=torch.float64).triu(1)
W = torch.ones(4)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("bad", "error", "what"),
    [
        (INDEFINITE, DefinitenessError, "must be positive"),
        (NAN, NonFiniteError, "must be finite, got 9 NaN"),
        (ASKEW, SymmetryError, "must be symmetric"),
        (A[:2], ShapeError, "must be square"),
        (A[0], ShapeError, "must have at least two dimensions"),
        (A.long(), DtypeError, "must be floating point"),
        ([[1.0]], DtypeError, "must be a torch.Tensor"),
    ],
    ids=["indefinite", "nan", "askew", "rectangular", "vector", "integer", "list"],
)
def test_matrices_that_are_not(metric: Any, bad: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=rf"^`spd\.distance`: `A` {what}"):
        sg.spd.distance(bad, A, metric)
    with pytest.raises(error, match=rf"^`spd\.distance`: `B` {what}"):
        sg.spd.distance(A, bad, metric)
    with pytest.raises(error, match=rf"^`spd\.geodesic`: `B` {what}"):
        sg.spd.geodesic(A, bad, 0.5, metric)
    if metric != "bures":
        with pytest.raises(error, match=rf"^`spd\.transport`: `B` {what}"):
            sg.spd.transport(A, A, bad, metric)
    if isinstance(bad, torch.Tensor) and bad.shape == A.shape:
        with pytest.raises(error, match=rf"^`spd\.mean`: `X` {what}"):
            sg.spd.mean(torch.stack([A.to(bad.dtype), bad]), metric=metric)


@pytest.mark.parametrize("metric", METRICS[:2])
def test_singular_matrices(metric: Any) -> None:
    with pytest.raises(DefinitenessError, match=r"`B` must be positive definite.*Add eps \* identity to `B`"):
        sg.spd.distance(A, SINGULAR, metric)


@pytest.mark.parametrize("metric", ["affine", "bures"])
def test_the_eigenvalues_in_an_error_are_of_one_matrix(metric: Any) -> None:
    """Not the smallest and the largest of a whole batch, which may both be of matrices that are fine."""
    batch = torch.stack([1e-6 * A, INDEFINITE, 1e6 * A])
    with pytest.raises(DefinitenessError, match=r"1 of 3 matrices.*-1\.000e\+00.*2\.000e\+00"):
        sg.spd.distance(batch, A, metric)


def test_tangent_vectors_are_symmetric_and_may_be_indefinite() -> None:
    assert sg.spd.transport(INDEFINITE, A, A).isfinite().all()
    with pytest.raises(SymmetryError, match=r"^`spd\.transport`: `T` must be symmetric.*pass \(T \+ T\.mH\) / 2"):
        sg.spd.transport(ASKEW, A, A)


@pytest.mark.parametrize("metric", METRICS)
def test_weights_that_nobody_looks_at(metric: Any) -> None:
    """Inside vmap: NaN for negative weights and for none, as for clouds, and the usual mean beside them."""
    w = torch.tensor([[1.0, -1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 2.0, 1.0]], dtype=torch.float64)
    M = torch.func.vmap(lambda w: sg.spd.mean(X, w, metric))(w)
    assert M[:2].isnan().all()
    torch.testing.assert_close(M[2], sg.spd.mean(X, w[2], metric), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        (lambda: sg.spd.distance(A, A, "euclid"), OptionError, 'metric must be "affine", "logeuclid" or "bures", got \'eu'),
        (lambda: sg.spd.geodesic(A, A, 0.5, None), OptionError, "metric must be"),
        (lambda: sg.spd.mean(X, metric="Affine"), OptionError, "metric must be"),
        (lambda: sg.spd.transport(A, A, A, "bures"), OptionError, "no closed form"),
        (lambda: sg.spd.distance(A, A, squared=1), OptionError, "squared must be True or False"),
        (lambda: sg.spd.distance(A, definite(n=4)), ShapeError, "one size and batches that broadcast"),
        (lambda: sg.spd.distance(definite(2, n=3), X), ShapeError, "one size and batches that broadcast"),
        (lambda: sg.spd.distance(A, A.float()), DtypeError, "one dtype"),
        (lambda: sg.spd.transport(definite(n=4), A, A), ShapeError, "`T` and `A` must have one size"),
        (lambda: sg.spd.geodesic(A, A, float("nan")), OptionError, "t must be a finite number"),
        (lambda: sg.spd.geodesic(A, A, True), OptionError, "t must be a finite number"),
        (lambda: sg.spd.geodesic(A, A, torch.tensor(1)), OptionError, "t must be"),
        (lambda: sg.spd.geodesic(X, A, torch.ones(3)), ShapeError, "t must broadcast"),
        (lambda: sg.spd.geodesic(A, A, torch.tensor(float("inf"))), NonFiniteError, "`t` must be finite"),
        (lambda: sg.spd.mean(A), ShapeError, "K >= 1 matrices"),
        (lambda: sg.spd.mean(X[:0]), ShapeError, "K >= 1 matrices"),
        (lambda: sg.spd.mean(X, torch.ones(3)), ShapeError, "weights must have shape"),
        (lambda: sg.spd.mean(X, torch.ones(2, 4)), ShapeError, "weights must have shape"),
        (lambda: sg.spd.mean(X, torch.ones(1)), ShapeError, "weights must have shape"),
        (lambda: sg.spd.mean(X, [1.0] * 4), DtypeError, "weights must be a tensor"),
        (lambda: sg.spd.mean(X, torch.tensor([1.0, -1.0, 1.0, 1.0])), OptionError, "weights must not be negative, got 1"),
        (lambda: sg.spd.mean(X, 0 * W), OptionError, "weights must have a positive sum"),
        (lambda: sg.spd.mean(X, W * float("nan")), NonFiniteError, "`weights` must be finite"),
    ],
)
def test_options_and_shapes(call: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what) as caught:
        call()
    assert str(caught.value).startswith("`spd.")
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_zero_matrix_that_nobody_sees_is_finite(dtype: torch.dtype) -> None:
    """Clamped, A^(-1/2) has entries of 1e161, and A^(-1/2) B A^(-1/2) would overflow."""
    zero, one = torch.zeros(1, 2, 2, dtype=dtype), torch.eye(2, dtype=dtype)[None]

    def every(A: Tensor, B: Tensor) -> Tensor:
        return sg.spd.distance(A, B) + sg.spd.geodesic(A, B, 0.3).sum() + sg.spd.transport(one[0], A, B).sum()

    for A, B in ((zero, one), (one, zero), (zero, zero)):
        gradients, value = torch.func.vmap(torch.func.grad_and_value(every, argnums=(0, 1)))(A, B)
        assert all(x.isfinite().all() for x in (*gradients, value))
    far = torch.func.vmap(sg.spd.distance)(zero, one)
    torch.testing.assert_close(far, torch.func.vmap(sg.spd.distance)(one, zero))
    assert float(far) > 100

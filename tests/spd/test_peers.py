"""Agreement with pyriemann, its iterations run to 1e-12."""

from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from support import cases
from support.spd import METRICS, definite, hermitian

geometry = pytest.importorskip("pyriemann.geometry")
THEIRS = {"affine": "riemann", "logeuclid": "logeuclid", "bures": "wasserstein"}
each_metric = pytest.mark.parametrize("metric", METRICS)
TOLERANCE = 1e-10


def theirs(kind: str, metric: str, *args: Any, **options: Any) -> Tensor:
    module = __import__(f"pyriemann.geometry.{'tangentspace' if kind == 'transport' else kind}", fromlist=["x"])
    found = getattr(module, f"{kind}_{THEIRS[metric]}")(
        *(x.numpy() if isinstance(x, Tensor) else x for x in args), **options
    )
    return torch.as_tensor(found)


@each_metric
def test_distances(metric: Any) -> None:
    A, B = definite(8, n=6, condition=100.0, seed=1), definite(8, n=6, condition=100.0, seed=2)
    torch.testing.assert_close(sg.spd.distance(A, B, metric), theirs("distance", metric, A, B), rtol=TOLERANCE, atol=0)


@each_metric
def test_geodesics(metric: Any) -> None:
    A, B = definite(n=6, condition=100.0, seed=1), definite(n=6, condition=100.0, seed=2)
    want = theirs("geodesic", metric, A, B, 0.3)
    torch.testing.assert_close(sg.spd.geodesic(A, B, 0.3, metric), want, rtol=0, atol=TOLERANCE * float(want.abs().max()))


@pytest.mark.parametrize("metric", METRICS[:2])
def test_transport(metric: Any) -> None:
    A, B = definite(n=6, condition=100.0, seed=1), definite(n=6, condition=100.0, seed=2)
    T = hermitian(cases.random(6, 6, seed=3))
    want = theirs("transport", metric, T, A, B)
    torch.testing.assert_close(sg.spd.transport(T, A, B, metric), want, rtol=0, atol=TOLERANCE * float(want.abs().max()))


@each_metric
def test_means(metric: Any) -> None:
    X, w = definite(10, n=6, condition=100.0), torch.rand(10, dtype=torch.float64, generator=cases.generator(1)) + 0.1
    options = {} if metric == "logeuclid" else {"tol": 1e-12, "maxiter": 10_000}
    want = theirs("mean", metric, X, sample_weight=w.numpy(), **options)
    torch.testing.assert_close(sg.spd.mean(X, w, metric), want, rtol=0, atol=TOLERANCE * float(want.abs().max()))


def test_spd_learn() -> None:
    learn = pytest.importorskip("spd_learn.functional")
    A, B = definite(8, n=6, condition=100.0, seed=1), definite(8, n=6, condition=100.0, seed=2)
    distances = {"affine": learn.airm_distance, "logeuclid": learn.log_euclidean_distance}
    for metric, theirs_ in distances.items():
        torch.testing.assert_close(sg.spd.distance(A, B, metric), theirs_(A, B).reshape(8), rtol=TOLERANCE, atol=0)  # type: ignore[arg-type]
    torch.testing.assert_close(sg.spd.geodesic(A, B, 0.3), learn.airm_geodesic(A, B, 0.3), rtol=1e-9, atol=1e-9)
    modules = pytest.importorskip("spd_learn.modules")
    X = cases.with_spectrum(torch.tensor([-1.0, 0.3, 2.0, 3.0], dtype=torch.float64), 5)
    torch.testing.assert_close(sg.nn.ReEig(0.5)(X), modules.ReEig(threshold=0.5)(X), rtol=TOLERANCE, atol=TOLERANCE)

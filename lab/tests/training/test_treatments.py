"""Treatments of the layer before the decomposition: each does what its name says, there and nowhere else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spectralgrad.errors import OptionError
from spectralgrad.orthogonal import OrthogonalConv2d, orthogonal_loss
from spectralgrad_lab.models.build import build, pre_svd
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.training.treatments import OL_WEIGHT, TREATMENTS, penalty, treat_step, treat_weight
from support.cases import random

ZCA = Trial(model="resnet18", width=4, layer="zca", method="taylor", d=2, eps=1e-2)
POOLED = Trial(model="digits-gcp", width=4, layer="gcp", method="taylor", d=8, eps=1e-2)


def treated(trial: Trial) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = build(trial, 10, 3, 16)
    treat_weight(net, trial)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    treat_step(optimizer, net, trial)
    return net, optimizer


def backward(net: Any) -> None:
    nn.functional.cross_entropy(net(random(8, 3, 16, 16, dtype=torch.float32)), torch.arange(8)).backward()


def singular_values(weight: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(weight.detach().double().flatten(1))


@pytest.mark.parametrize("trial", [ZCA, POOLED], ids=["zca", "gcp"])
@pytest.mark.parametrize("name", ["SN", "OW"])
def test_weight_treatments_act_on_the_pre_svd_layer_alone(trial: Trial, name: str) -> None:
    net, _ = treated(replace(trial, treatments=(name,)))
    values = singular_values(pre_svd(net).weight)
    assert float(values[0]) == pytest.approx(1, abs=1e-5)
    if name == "OW":
        assert float(values[-1]) == pytest.approx(1, abs=1e-5)
    parametrized = [m for m in net.modules() if hasattr(m, "parametrizations")]
    assert parametrized == [pre_svd(net)]


@pytest.mark.parametrize("trial", [ZCA, POOLED], ids=["zca", "gcp"])
def test_gradient_becomes_orthogonal_in_the_step(trial: Trial) -> None:
    net, optimizer = treated(replace(trial, treatments=("NOG",)))
    backward(net)
    others = {name: p.grad.clone() for name, p in net.named_parameters() if p is not pre_svd(net).weight}
    optimizer.step()
    values = singular_values(pre_svd(net).weight.grad)
    torch.testing.assert_close(values, torch.ones_like(values), atol=1e-4, rtol=0)
    for name, p in net.named_parameters():
        if name in others:
            assert torch.equal(p.grad, others[name]), name


def test_learning_rate_and_skew_matrix_are_what_the_optimizer_holds() -> None:
    net, optimizer = treated(replace(ZCA, treatments=("OW", "NOG", "OLR")))
    held = net.conv1.parametrizations.weight.original
    backward(net)
    before = held.detach().clone()
    optimizer.step()
    values = singular_values(held.grad)
    torch.testing.assert_close(values, torch.ones_like(values), atol=1e-4, rtol=0)
    assert not torch.equal(held, before)


@pytest.mark.parametrize("skew", ["matrix", "convolution"])
def test_skew_matrix_starts_at_random_so_that_olr_is_a_rate(skew: str) -> None:
    net, _ = treated(replace(ZCA, treatments=("OW", "OLR"), skew=skew))
    conv = pre_svd(net)
    held = conv.weight if skew == "convolution" else conv.parametrizations.weight.original
    assert float(held.detach().abs().max()) > 0.01
    backward(net)
    w, g = held.detach().double().flatten(), held.grad.double().flatten()
    rate = float((w @ w) * (g @ w) / ((w @ w) * (g @ g) + 2 * (g @ w) ** 2))
    assert np.isfinite(rate)
    assert rate != 0


def test_skew_convolution_takes_the_place_of_the_convolution() -> None:
    for trial in (ZCA, POOLED):
        net, optimizer = treated(replace(trial, treatments=("OW", "NOG"), skew="convolution"))
        conv = pre_svd(net)
        assert isinstance(conv, OrthogonalConv2d)
        backward(net)
        optimizer.step()
        values = singular_values(conv.weight.grad)
        torch.testing.assert_close(values, torch.ones_like(values), atol=1e-4, rtol=0)
        x = random(2, conv.in_channels, 6, 6, dtype=torch.float32)
        if conv.in_channels <= conv.out_channels:
            torch.testing.assert_close(conv(x).norm(), x.norm(), rtol=1e-5, atol=0)
        plain, _ = treated(replace(trial, treatments=("OW", "NOG")))
        assert pre_svd(plain)(x).shape == conv(x).shape
        assert not torch.allclose(pre_svd(plain)(x), conv(x), atol=1e-3)


def test_step_with_another_rate_differs_from_plain_sgd() -> None:
    """OLR shortens the step of conv1 where eta < lr; the other parameters go as before."""
    plain, first = treated(ZCA)
    net, second = treated(replace(ZCA, treatments=("OLR",)))
    for group in (*first.param_groups, *second.param_groups):
        group["lr"] = 1e6
    for model in (plain, net):
        backward(model)
        weight = pre_svd(model).weight
        weight.grad = weight.detach().clone()  # eta = 1/3, as in the doctest of OptimalLearningRate
    start = pre_svd(net).weight.detach().clone()
    first.step()
    second.step()
    torch.testing.assert_close(pre_svd(net).weight.detach(), start * 2 / 3, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(pre_svd(plain).weight, pre_svd(net).weight)
    assert torch.equal(plain.classifier.weight, net.classifier.weight)


def test_penalty_is_the_orthogonal_loss_of_that_layer() -> None:
    net, _ = treated(replace(ZCA, treatments=("OL",)))
    term = penalty(net, replace(ZCA, treatments=("OL",)))
    assert term is not None
    assert term().item() == pytest.approx(OL_WEIGHT * orthogonal_loss(net.conv1).item())
    assert term().item() > 0
    assert penalty(net, ZCA) is None


def test_a_convolution_with_a_stride_has_no_skew_convolution() -> None:
    net = build(ZCA, 10, 3, 224)
    with pytest.raises(OptionError, match=r"keeps the size of the map, got stride \(2, 2\)"):
        treat_weight(net, replace(ZCA, treatments=("OW",), skew="convolution"))


def test_without_treatments_nothing_is_attached() -> None:
    net, optimizer = treated(ZCA)
    assert not any(hasattr(m, "parametrizations") for m in net.modules())
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"treatments": ("XX",)}, f"treatments must be of {', '.join(TREATMENTS)}, got 'XX'"),
        ({"treatments": ("OL", "OL")}, "named once"),
        ({"treatments": ("SN", "OW")}, "take one of them"),
        ({"treatments": ("NOG",), "layer": "bn"}, "batch norm has none"),
        ({"treatments": ("OW",), "skew": "kernel"}, "skew must be matrix or convolution"),
        ({"treatments": ("NOG",), "skew": "convolution"}, "a form of OW"),
        ({"treatments": ("OW", "OL"), "skew": "convolution"}, "no OL"),
        ({"treatments": ("NOG",), "where": "block"}, "with where block leave them out"),
    ],
)
def test_what_does_not_go_together_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        treat_weight(build(ZCA, 10, 3, 16), replace(ZCA, **change))

"""The example of Shampoo and SOAP: it trains, and its steps are the ones it says."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

PATH = Path(__file__).parents[1] / "examples" / "shampoo_and_soap.py"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(PATH))


def test_it_trains_better_than_adam(example: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        errors = example["main"](steps=100)
    assert errors["Shampoo"] < 0.9 * errors["Adam"]
    assert errors["Soap"] < 0.9 * errors["Adam"]
    assert capsys.readouterr().out.count("error") == 3


def weight(gradients: list[torch.Tensor], optimize: Any, **options: Any) -> torch.Tensor:
    p = torch.zeros(gradients[0].shape, requires_grad=True)
    optimizer = optimize([p], **options)
    for G in gradients:
        p.grad = G.clone()
        optimizer.step()
    return p.detach()


def test_steps(example: dict[str, Any]) -> None:
    G = [torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    torch.testing.assert_close(
        weight(G, example["Adam"], lr=0.1), weight(G, torch.optim.Adam, lr=0.1, betas=(0.9, 0.99)), rtol=1e-4, atol=1e-6
    )
    # Shampoo's first step is the polar factor U V^T with the length of Adam's. SOAP's steps turn with the rows.
    U, _, Vh = torch.linalg.svd(G[0][:3])
    torch.testing.assert_close(-weight([G[0][:3]], example["Shampoo"], lr=1.0), 3**0.5 * U @ Vh, rtol=1e-3, atol=1e-3)
    turn = torch.linalg.qr(G[1] @ G[2].T)[0]
    turned = weight([turn @ each for each in G], example["Soap"], lr=0.1, every=1)
    torch.testing.assert_close(turned, turn @ weight(G, example["Soap"], lr=0.1, every=1), rtol=1e-3, atol=1e-4)

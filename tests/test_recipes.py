"""Every recipe of docs/recipes.md can be pasted, has the gradient of central differences, and says when not to use it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"
SECTIONS = dict(zip(*[iter(re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)[1:])] * 2, strict=True))
STEP = 3e-4  # of central differences of fourth order: an error of STEP^4, and of eps / STEP by rounding
TOLERANCE = 1e-6
DIRECTIONS = 4  # at random, besides that of the gradient


def blocks(section: str) -> list[str]:
    return re.findall(r"^```python\n(.+?)^```", section, flags=re.DOTALL | re.MULTILINE)


def run(section: str) -> dict[str, Any]:
    """The names that a recipe binds, pasted alone into a fresh session."""
    namespace: dict[str, Any] = {"__name__": "__recipe__"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile("\n".join(blocks(section)), "<recipe>", "exec"), namespace)
    return namespace


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def definite(*shape: int, seed: int = 0) -> Tensor:
    A = randn(*shape, seed=seed)
    return A @ A.mT + 0.5 * torch.eye(shape[-1], dtype=torch.float64)


def symmetric(X: Tensor) -> Tensor:
    """The symmetric part, so that each entry may be moved alone."""
    return (X + X.mT) / 2


@dataclass(frozen=True)
class Recipe:
    """A function of some inputs, made from the names of a recipe."""

    title: str
    function: Callable[[dict[str, Any]], Callable[..., Tensor]]
    inputs: tuple[Tensor, ...]


def _scene() -> tuple[Tensor, Tensor]:
    """Points (20, 3) and where a camera sees them, with noise."""
    X = randn(20, 3, seed=4)
    return X, X[:, :2] / (X[:, 2:] + 6) + 0.01 * randn(20, 2, seed=5)


def _matches() -> tuple[Tensor, Tensor]:
    """Image points (15, 2) of two cameras, one moved and turned a little, with noise."""
    X = 3 * randn(15, 3, seed=6).tanh() + torch.tensor([0.0, 0, 5])
    turn = torch.linalg.matrix_exp(torch.tensor([[0.0, 0.1, -0.2], [-0.1, 0, 0.3], [0.2, -0.3, 0]], dtype=torch.float64))
    Y = X @ turn.T + torch.tensor([1.0, 0.5, 0.2])
    return X[:, :2] / X[:, 2:], Y[:, :2] / Y[:, 2:] + 0.01 * randn(15, 2, seed=7)


def _classifier(names: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    torch.manual_seed(0)
    net = names["spd_network"](5, 3).double()

    def loss(X: Tensor) -> Tensor:
        scores: Tensor = net(symmetric(X))
        return torch.nn.functional.cross_entropy(scores, torch.arange(6) % 3)

    return loss


def _correlation(names: dict[str, Any]) -> Callable[..., Tensor]:
    return lambda x, y, A, B: names["views_loss"](x, y, lambda z: (z @ A).tanh(), lambda z: (z @ B).tanh())


RECIPES = [
    Recipe(
        "Kabsch: superpose on one part, measure another",
        lambda names: lambda x, y: names["superposed_loss"](x, y, torch.arange(9) < 5),
        (randn(2, 9, 3), randn(2, 9, 3, seed=1)),
    ),
    Recipe("FID as a loss", lambda names: names["fid"], (randn(5, 7), randn(4, 7, seed=1))),
    Recipe("Deep CCA", _correlation, (randn(6, 5), randn(6, 4, seed=1), randn(5, 8, seed=2), randn(4, 8, seed=3))),
    Recipe("A network on covariances", _classifier, (definite(6, 5, 5),)),
    Recipe(
        "Spectral clustering with a learned affinity",
        lambda names: lambda x: names["clustering_loss"](x, torch.arange(8) % 3),
        (randn(8, 2),),
    ),
    Recipe(
        "Log-Euclidean mean with attention",
        lambda names: lambda X, scores: names["attended"](symmetric(X), scores),
        (definite(2, 4, 3, 3), randn(2, 4, seed=1)),
    ),
    Recipe("Differentiable PCA", lambda names: lambda x: names["pca_reconstruction"](x, 2), (randn(2, 9, 4),)),
    Recipe(
        "The null vector of the eight-point algorithm",
        lambda names: lambda x, y, w: names["essential_matrix"](x, y, w).flatten().square(),
        (*_matches(), randn(15, seed=8).abs() + 0.1),
    ),
    Recipe(
        "A camera from points: the 12 x 12 null vector",
        lambda names: names["reprojection"],
        (*_scene(), randn(20, seed=8).abs() + 0.1),
    ),
    Recipe(
        "Shampoo's preconditioner",
        lambda names: lambda G, L, R: names["shampoo_direction"](G, symmetric(L), symmetric(R)),
        (randn(5, 3), definite(5, 5, seed=1), definite(3, 3, seed=2)),
    ),
    Recipe(
        "A whitening loss for self-supervised learning",
        lambda names: names["whitening_loss"],
        (randn(9, 4), randn(9, 4, seed=1)),
    ),
]


def weighed(y: Tensor) -> Tensor:
    """A number in which every entry of y has a weight of its own."""
    return (y * torch.arange(1, y.numel() + 1).to(y).sin().reshape(y.shape)).sum()


def slope(f: Callable[..., Tensor], inputs: tuple[Tensor, ...], which: int, direction: Tensor) -> float:
    """The derivative by central differences, along one direction of one of the inputs."""
    total = 0.0
    with torch.no_grad():
        for steps, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
            moved = [x + steps * STEP * direction if i == which else x for i, x in enumerate(inputs)]
            total += weight * float(weighed(f(*moved))) / (12 * STEP)
    return total


def disagreement(f: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> float:
    """The largest distance of autograd's slopes from central differences, relative to the gradient."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    gradients = torch.autograd.grad(weighed(f(*leaves)), leaves)
    worst = 0.0
    for which, gradient in enumerate(gradients):
        assert gradient.isfinite().all()
        assert gradient.norm() > 1e-3  # else the comparison would say nothing
        for direction in (gradient, *(randn(*gradient.shape, seed=90 + i) for i in range(DIRECTIONS))):
            direction = direction / direction.norm()
            error = abs(slope(f, inputs, which, direction) - float((gradient * direction).sum()))
            worst = max(worst, error / float(gradient.norm()))
    return worst


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_gradient_is_that_of_central_differences(recipe: Recipe) -> None:
    with torch.random.fork_rng():
        f = recipe.function(run(SECTIONS[recipe.title]))
        assert disagreement(f, recipe.inputs) < TOLERANCE


def test_each_section_is_a_recipe_that_is_checked() -> None:
    assert [recipe.title for recipe in RECIPES] == list(SECTIONS)


@pytest.mark.parametrize("title", SECTIONS)
def test_form(title: str) -> None:
    """One block that imports what it needs, of some ten lines, and one sentence on when not."""
    (block,) = blocks(SECTIONS[title])
    assert block.startswith("import torch, spectralgrad as sg\n")
    assert 5 <= sum(bool(line.strip()) for line in block.splitlines()) <= 18
    after = SECTIONS[title].split("```")[-1]
    assert after.count("*When not.*") == 1
    assert re.fullmatch(r"\s*\*When not\.\*[^.]+(\.\d[^.]*)*\.\s*", after)


# Controls: the comparison must be able to fail.


def test_a_gradient_off_by_a_millionth_part_is_seen() -> None:
    def off(x: Tensor) -> Tensor:
        y = x.square() * x.sin()
        return y.detach() + (1 + 2 * TOLERANCE) * (y - y.detach())

    assert disagreement(lambda x: x.square() * x.sin(), (randn(3),)) < TOLERANCE < disagreement(off, (randn(3),))
    with pytest.raises(AssertionError, match="isfinite"):
        disagreement(lambda x: x * (x - x.detach()).sqrt() + x, (randn(3),))

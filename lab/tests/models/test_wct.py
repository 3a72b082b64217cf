"""The style-transfer network of PAMI fig. 8: what its hops compute, and the gradients of its variants."""

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import OptionError, ShapeError
from spectralgrad_lab.models.discriminator import PatchDiscriminator
from spectralgrad_lab.models.wct import VARIANTS, StyleNetwork, StylePair
from spectralgrad_lab.models.wct_blocks import Decomposed, Learned, Roots, grouped
from support.cases import POSITIVE_SPECTRA, equal, generator, random_covariance, relative_error, with_spectrum

DECOMPOSED = [variant for variant in VARIANTS if variant != "gd"]
SMALL = {"width": 4, "group_size": 8}  # 16 channels in two groups


def pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=generator(seed))


def network(variant: str, **options: object) -> StyleNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return StyleNetwork(variant, **{**SMALL, **options})  # type: ignore[arg-type]


def covariance(groups: Tensor) -> Tensor:
    return sg.covariance(groups.detach().double())


def gradient(model: StyleNetwork, content: Tensor, style: Tensor) -> Tensor:
    """Of a loss that depends on every picture's details, by all weights."""
    wanted = pictures(*content.shape, seed=9).to(content.dtype)
    (model(content, style) - wanted).square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


# What the hops compute.


@pytest.mark.parametrize("variant", VARIANTS)
def test_pictures_come_out_in_their_shape_and_range(variant: str) -> None:
    painted = network(variant)(pictures(2, 3, 16, 24), pictures(2, 3, 20, 12, seed=1))
    assert painted.shape == (2, 3, 16, 24)
    assert 0 < float(painted.detach().min()) < float(painted.detach().max()) < 1


@pytest.mark.parametrize("variant", DECOMPOSED)
def test_whitening_gives_the_identity_in_each_group(variant: str) -> None:
    """Inside the network: the features that arrive at every hop, with their own covariance far from the identity."""
    model = network(variant, eps=1e-6)
    seen: list[tuple[Tensor, Tensor]] = []
    for step in model.generator.steps:
        step.register_forward_pre_hook(lambda module, inputs: seen.append((inputs[0], module.whiten(inputs[0])[0])))
    model(pictures(2, 3, 48, 48), pictures(2, 3, 48, 48, seed=1))
    assert len(seen) == 5
    for before, white in seen:
        identity = torch.eye(8).expand(2, 2, 8, 8)
        assert relative_error(covariance(white), identity) < 2e-3
        assert relative_error(covariance(grouped(before, 8)), identity) > 0.2


def test_the_shift_is_what_is_missing_from_the_identity() -> None:
    hop, x = Decomposed(8, "exact", 4, eps=0.5), torch.randn(1, 8, 9, 9, generator=generator())
    w = torch.linalg.eigvalsh(covariance(grouped(x, 4)))
    assert torch.allclose(torch.linalg.eigvalsh(covariance(hop.whiten(x)[0])), w / (w + 0.5), atol=1e-5)


def test_the_learned_map_is_no_whitening_until_it_is_trained() -> None:
    hop, x = Learned(8, 4), 3 * torch.randn(4, 8, 9, 9, generator=generator())
    before = float(hop.whiten(x)[1].detach())
    optimizer = torch.optim.Adam(hop.parameters(), 0.02)
    for _ in range(100):
        optimizer.zero_grad()
        hop.whiten(x)[1].backward()
        optimizer.step()
    assert before > 1
    assert float(hop.whiten(x)[1].detach()) < 0.2


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_hop_has_the_colours_that_it_was_given(variant: str) -> None:
    hop = Learned(8, 4) if variant == "gd" else Decomposed(8, variant, 4, eps=1e-5)
    x = torch.randn(2, 8, 12, 12, generator=generator())
    matrix = random_covariance(4, 2, 2, dtype=torch.float32)
    mean = torch.randn(2, 8, generator=generator(1))
    y, _ = hop(x, matrix, mean)
    assert torch.allclose(y.mean((2, 3)), mean, atol=1e-4)
    wanted = matrix @ covariance(hop.whiten(x)[0]).float() @ matrix
    assert relative_error(covariance(grouped(y, 4)), wanted) < 1e-4
    if variant != "gd":
        assert relative_error(wanted, matrix @ matrix) < 1e-3


def test_colours_are_the_moments_of_the_style_features() -> None:
    model = network("exact", eps=0.01)
    style = pictures(2, 3, 16, 16)
    colours = model.colours(style)
    assert colours.matrices.shape == (2, 5, 2, 8, 8)
    features = model.generator.steps[3].mlp(model.style(2 * style - 1))
    wanted = sg.sqrtm(covariance(grouped(features, 8)) + 0.01 * torch.eye(8))
    assert relative_error(colours.matrices[:, 3].detach(), wanted) < 1e-5
    assert torch.allclose(colours.means[:, 3], features.mean((2, 3)), atol=1e-5)
    twice = colours.repeated(2)
    assert torch.equal(twice.matrices[2:], colours.matrices)
    assert torch.equal(twice.means[:2], colours.means)


def test_the_learned_colouring_is_symmetric_and_its_penalty_is_zero_for_orthogonal_columns() -> None:
    hop = Learned(8, 4)
    S, mean, penalty = hop.colours(torch.randn(3, 8, generator=generator()))
    assert torch.allclose(S, S.mT, atol=1e-6)
    assert mean.shape == (3, 8)
    assert float(penalty.detach()) > 1e-3
    torch.nn.init.zeros_(hop.matrix.weight)
    torch.nn.init.zeros_(hop.matrix.bias)  # type: ignore[arg-type]
    S, _, penalty = hop.colours(torch.randn(3, 8, generator=generator()))
    assert float(penalty.detach()) == 0
    assert torch.equal(S, torch.eye(4).expand(3, 2, 4, 4))


def test_content_and_exemplar_both_matter_and_samples_do_not_mix() -> None:
    model = network("taylor").eval()
    content, style = pictures(2, 3, 16, 16), pictures(2, 3, 16, 16, seed=1)
    with torch.no_grad():
        y = model(content, style)
        assert torch.allclose(model(content[1:], style[1:]), y[1:], atol=1e-5)
        assert not torch.allclose(model(content.flip(0), style), y, atol=1e-3)
        assert not torch.allclose(model(content, style.flip(0)), y, atol=1e-3)


# Gradients.


def test_the_variants_have_different_gradients_for_one_result() -> None:
    content, style = pictures(2, 3, 16, 16), pictures(2, 3, 16, 16, seed=1)
    found, painted = {}, {}
    for variant in DECOMPOSED:
        model = network(variant)
        model.load_state_dict(network("exact").state_dict())
        painted[variant] = model(content, style).detach()
        found[variant] = gradient(model, content, style)
    for variant in DECOMPOSED:
        assert torch.allclose(painted[variant], painted["exact"], atol=1e-4)
        for other in DECOMPOSED:
            if other != variant:
                assert relative_error(found[variant], found[other]) > 1e-5, (variant, other)


def test_exact_is_the_gradient_of_what_is_computed_and_taylor_is_near_it() -> None:
    """Central differences in float64 along one direction of all weights; ReLU's kinks limit the agreement."""
    content, style = pictures(1, 3, 16, 16).double(), pictures(1, 3, 16, 16, seed=1).double()
    wanted = pictures(1, 3, 16, 16, seed=9).double()

    def slope(variant: str) -> float:
        model = network(variant).double()
        along = [torch.randn(p.shape, dtype=p.dtype, generator=generator(i)) for i, p in enumerate(model.parameters())]
        found = gradient(model, content, style) @ torch.cat([x.flatten() for x in along])
        if variant != "exact":
            return float(found)
        values = []
        with torch.no_grad():
            for sign in (1, -1):
                for p, x in zip(model.parameters(), along, strict=True):
                    p += sign * step * x
                values.append(float((model(content, style) - wanted).square().sum()))
                for p, x in zip(model.parameters(), along, strict=True):
                    p -= sign * step * x
        assert float(found) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4)
        return float(found)

    step = 1e-7
    exact = slope("exact")
    assert slope("taylor") != pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_finite_at_a_tie(variant: str) -> None:
    """One constant picture: every covariance is zero, so that all eigenvalues of the shifted one are equal."""
    model = network(variant)
    found = gradient(model, torch.full((1, 3, 16, 16), 0.5), torch.full((1, 3, 16, 16), 0.25))
    assert found.isfinite().all()
    assert found.abs().max() > 0


def test_the_papers_own_gradient_is_not() -> None:
    """Negative control: the bare 1 / gap at the same tie."""
    model = network("exact")
    for module in model.modules():
        if isinstance(module, Roots):
            module.gradient = sg.Analytic()
    found = gradient(model, torch.full((1, 3, 16, 16), 0.5), torch.full((1, 3, 16, 16), 0.25))
    assert not found.isfinite().all()


@pytest.mark.parametrize("spectrum", POSITIVE_SPECTRA)
@pytest.mark.parametrize("inverse", [True, False])
@pytest.mark.parametrize("deflation", ["two-sided", "printed"])
def test_pi_in_training_is_the_algorithm_without_its_loop(spectrum, inverse: bool, deflation: str) -> None:  # type: ignore[no-untyped-def]
    """The proposition of PAMI: s steps are degree s - 1, or a degree less through the printed deflation; breaks too."""
    w = spectrum(6)
    M, G = with_spectrum(w, 2), torch.randn(2, 6, 6, dtype=torch.float64, generator=generator())
    found = []
    for training in (True, False):
        X = M.clone().requires_grad_()
        root = Roots("pi", inverse, eps=1e-3, iterations=4, deflation=deflation).train(training)(X)
        found.append((root.detach(), torch.autograd.grad((root * G).sum(), X)[0]))
    assert relative_error(found[0][0], found[1][0]) < 1e-10
    if spectrum is not equal:  # there the order inside a tie is rounding's
        assert relative_error(found[0][1], found[1][1]) < 1e-6


def test_pi_drops_what_its_conditions_drop() -> None:
    M = torch.diag(torch.tensor([1.0, 1e-6, 0.0]))
    for training in (True, False):
        root = Roots("pi", inverse=True, eps=1e-8).train(training)(M)
        assert torch.allclose(root.diagonal(), torch.tensor([1.0, 0.0, 0.0]), atol=1e-6)  # the first has 1 - 1e-6 of all
    assert float(Roots("exact", inverse=True, eps=1e-8)(M)[1, 1]) > 900


@pytest.mark.parametrize("variant", VARIANTS)
def test_half_precision_outside_leaves_the_whitening_in_single(variant: str) -> None:
    model = network(variant, eps=1e-4)
    x = torch.randn(1, 16, 12, 12, generator=generator()).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        white, _ = model.generator.steps[0].whiten(x)
        painted = model(pictures(1, 3, 16, 16), pictures(1, 3, 16, 16, seed=1))
    assert white.dtype == painted.dtype == torch.float32
    if variant != "gd":
        assert relative_error(covariance(white), torch.eye(8).expand(1, 2, 8, 8)) < 1e-3
    painted.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("variant", "option"),
    [
        ("exact", {"eps": 0.5}),
        ("exact", {"group_size": 4}),
        ("exact", {"hops": 4}),
        ("exact", {"blocks": 1}),
        ("exact", {"width": 8}),
        ("gd", {"group_size": 4}),
    ],
)
def test_options_change_the_result(variant: str, option: dict[str, float]) -> None:
    content, style = pictures(1, 3, 16, 16), pictures(1, 3, 16, 16, seed=1)
    with torch.no_grad():
        assert not torch.allclose(network(variant)(content, style), network(variant, **option)(content, style), atol=1e-4)


@pytest.mark.parametrize(("variant", "iterations"), [("taylor", 2), ("pi", 3)])
def test_iterations_change_the_gradient(variant: str, iterations: int) -> None:
    content, style = pictures(1, 3, 16, 16), pictures(1, 3, 16, 16, seed=1)
    found = [gradient(network(variant, iterations=k), content, style) for k in (None, iterations)]
    assert relative_error(found[1], found[0]) > 1e-3


def test_deflation_changes_the_gradient_of_pi_alone() -> None:
    content, style = pictures(1, 3, 16, 16), pictures(1, 3, 16, 16, seed=1)
    found = [gradient(network("pi", iterations=3, deflation=way), content, style) for way in ("two-sided", "printed")]
    assert relative_error(found[1], found[0]) > 1e-3
    for variant in ("gd", "taylor"):
        with pytest.raises(OptionError, match="deflation is that of pi"):
            network(variant, deflation="printed")


# The door.


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "svd"},
        {"width": 0},
        {"group_size": 7},
        {"eps": 0.0},
        {"hops": 0},
        {"blocks": 1.5},
        {"iterations": 3},
        {"variant": "gd", "iterations": 3},
    ],
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="StyleNetwork"):
        network(**{"variant": "exact", **options})  # type: ignore[arg-type]


def test_stylise_takes_any_size_and_the_way_that_the_domain_says() -> None:
    pair = StylePair(network("exact"), network("taylor", blocks=1), ("monet",)).eval()
    content, style = pictures(2, 3, 17, 23), pictures(2, 3, 9, 30, seed=1)
    y = pair.stylise(content, style, "monet")
    assert y.shape == content.shape
    assert not y.requires_grad
    assert not torch.allclose(pair.stylise(content, style, "photo"), y, atol=1e-3)
    whole = pictures(1, 3, 16, 16)
    assert torch.equal(pair.stylise(whole, whole, "monet"), pair.to_art(whole, whole).detach())
    with pytest.raises(OptionError, match="monet, photo, got 'ukiyoe'"):
        pair.stylise(content, style, "ukiyoe")
    pair.to_photo = None
    with pytest.raises(OptionError, match="one of monet, got 'photo'"):
        pair.stylise(content, style, "photo")
    for bad in (style[:1], style[:, :1], style[..., :5], style[0]):
        with pytest.raises(ShapeError, match="style must be"):
            pair.stylise(content, bad, "monet")


def test_a_discriminator_has_a_map_for_each_domain_and_scale() -> None:
    judge = PatchDiscriminator(3, width=4, scales=2)
    x = pictures(2, 3, 32, 48)
    maps = judge(x)
    assert [tuple(m.shape) for m in maps] == [(2, 3, 4, 6), (2, 3, 2, 3)]
    moved = x.clone()
    moved[..., :4, :4] = 0
    assert not torch.equal(judge(moved)[0][..., 0, 0], maps[0][..., 0, 0])
    assert torch.equal(judge(moved)[0][..., -1, -1], maps[0][..., -1, -1])  # patches: far away nothing changes
    with pytest.raises(OptionError, match="PatchDiscriminator"):
        PatchDiscriminator(0)

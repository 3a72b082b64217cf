"""WhitenColor2d, whiten_color and color_transfer: statistics, gradients, images, and what torch.nn modules can do."""

import copy
import io
import math
import pickle
import runpy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.nn import coloring
from spectralgrad.nn.coloring import WhitenColor2d
from spectralgrad.nn.functional import color_transfer, whiten_color
from support.cases import BOUNDED_RULES, GRADIENTS, SOLVERS, generator, ident, random, relative_error
from support.marks import slow_but
from support.precision import matmul_precision

torch.set_num_threads(1)

EXAMPLES = Path(__file__).parents[2] / "examples"
NEWTON = sg.NewtonSchulz()
ROOTS = [*SOLVERS, NEWTON]


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    yield
    torch.compiler.reset()


def features(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Correlated maps with a mean (N, C, H, W), whose entries float32 can hold."""
    mix = random(shape[1], shape[1], seed=seed + 1) / shape[1] ** 0.5 + torch.eye(shape[1], dtype=torch.float64)
    x = torch.einsum("ij,njhw->nihw", mix, random(*shape, seed=seed)) + random(shape[1], 1, 1, seed=seed + 2)
    return x.float().to(dtype)


def statistics(x: Tensor, group_size: int | None = None, per: str = "sample") -> tuple[Tensor, Tensor]:
    """Mean (N, G, g, 1) and covariance (N, G, g, g) in float64; N = 1 over a batch."""
    X = x.double().flatten(2)
    X = X.transpose(0, 1).flatten(1).unsqueeze(0) if per == "batch" else X
    size = group_size or X.shape[1]
    X = X.unflatten(1, (X.shape[1] // size, size))
    mean = X.mean(-1, keepdim=True)
    return mean, (X - mean) @ (X - mean).mT / X.shape[-1]


def root(C: Tensor, power: float) -> Tensor:
    w, V = torch.linalg.eigh(C)
    return (V * w.clamp(min=1e-30).pow(power).unsqueeze(-2)) @ V.mT


def reference(x: Tensor, s: Tensor, eps: float = 1e-5, group_size: int | None = None) -> Tensor:
    """The definition in float64, per sample."""
    (mean_c, C_c), (mean_s, C_s) = statistics(x, group_size), statistics(s, group_size)
    X = x.double().flatten(2).unflatten(1, C_c.shape[1:3]) - mean_c
    eye = torch.eye(C_c.shape[-1], dtype=torch.float64)
    return (root(C_s, 0.5) @ root(C_c + eps * eye, -0.5) @ X + mean_s).reshape(x.shape)


def gradients(x: Tensor, s: Tensor, G: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    x, s = x.clone().requires_grad_(), s.clone().requires_grad_()
    y = whiten_color(x, s, **options)
    return torch.autograd.grad((y * G.to(y.dtype)).sum(), (x, s))


# Values.


@pytest.mark.parametrize("solver", ROOTS, ids=ident)
@pytest.mark.parametrize("per", ["sample", "batch"])
@pytest.mark.parametrize("group_size", [None, 4, 1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-3)], ids=ident)
def test_statistics_become_those_of_the_style(solver, per, group_size, dtype, tolerance):
    content, style = features(2, 8, 10, 9, dtype=dtype), 3 * features(2, 8, 12, 7, dtype=dtype, seed=5) - 2
    y = whiten_color(content, style, group_size=group_size, per=per, solver=solver)
    assert y.shape == content.shape
    assert y.dtype == dtype
    for new, wanted in zip(statistics(y, group_size, per), statistics(style, group_size, per), strict=True):
        assert relative_error(new, wanted) < tolerance
    if group_size == 4:  # and only within a group
        assert relative_error(statistics(y, None, per)[1], statistics(style, None, per)[1]) > 1e-2


@pytest.mark.parametrize("solver", ROOTS, ids=ident)
@pytest.mark.parametrize("group_size", [None, 3])
def test_is_the_definition(solver, group_size):
    content, style = features(2, 6, 5, 5), features(2, 6, 4, 8, seed=5)
    expected = reference(content, style, 0.1, group_size)
    options = {"group_size": group_size, "eps": 0.1, "solver": solver}
    assert relative_error(whiten_color(content, style, **options), expected) < 1e-9
    assert relative_error(whiten_color(content.float(), style.float(), **options), expected) < 1e-5


def test_its_own_style_changes_nothing():
    x = features(2, 6, 5, 5)
    assert relative_error(whiten_color(x, x, eps=1e-12), x) < 1e-9
    few = features(2, 6, 2, 2)  # singular
    assert relative_error(whiten_color(few, few, eps=1e-12), few) < 1e-9


def test_blend_factor():
    content, style = features(2, 4, 5, 5, dtype=torch.float32), features(2, 4, 5, 5, dtype=torch.float32, seed=5)
    full = whiten_color(content, style)
    assert torch.equal(whiten_color(content, style, alpha=0), content)
    assert torch.equal(whiten_color(content, style, alpha=1), full)
    torch.testing.assert_close(whiten_color(content, style, alpha=0.25), 0.75 * content + 0.25 * full)


def test_one_style_serves_all_and_samples_are_apart():
    content, style = features(3, 4, 5, 5), features(3, 4, 6, 6, seed=5)
    one = whiten_color(content, style[:1])
    torch.testing.assert_close(one, whiten_color(content, style[:1].expand(3, -1, -1, -1)))
    each = torch.cat([whiten_color(c[None], s[None]) for c, s in zip(content, style, strict=True)])
    torch.testing.assert_close(whiten_color(content, style), each)
    changed = torch.cat([content[:2], content[2:] * 5])
    torch.testing.assert_close(whiten_color(changed, style)[:2], each[:2])
    assert (
        relative_error(whiten_color(changed, style, per="batch")[:2], whiten_color(content, style, per="batch")[:2]) > 1e-2
    )


def test_batch_statistics_take_any_number_of_styles():
    content, style = features(3, 4, 5, 5), features(5, 4, 2, 3, seed=5)
    y = whiten_color(content, style, per="batch")
    for new, wanted in zip(statistics(y, None, "batch"), statistics(style, None, "batch"), strict=True):
        assert relative_error(new, wanted) < 1e-3


def test_mixed_dtypes_keep_the_content_s():
    content, style = features(2, 4, 5, 5), features(2, 4, 5, 5, seed=5)
    y = whiten_color(content.float(), style)
    assert y.dtype == torch.float32
    assert relative_error(y, whiten_color(content, style)) < 1e-6
    assert whiten_color(content.bfloat16(), style.float()).dtype == torch.bfloat16


# Singular covariances.

FULL = random(2, 6, 5, 5, dtype=torch.float32)
SINGULAR = {
    "constant": torch.full((2, 6, 3, 3), 0.1),
    "1 x 1": random(2, 6, 1, 1, dtype=torch.float32),
    "zero": torch.zeros(2, 6, 3, 3),
    "few positions": random(2, 6, 2, 2, dtype=torch.float32),
    "duplicate channels": random(2, 3, 5, 5, dtype=torch.float32).repeat(1, 2, 1, 1),
    "dead channels": FULL * (torch.arange(6) % 2).view(6, 1, 1),
}
CHOICES = [
    *({"solver": solver} for solver in [*ROOTS, sg.NewtonSchulz(steps=5)]),
    *({"gradient": rule} for rule in [*BOUNDED_RULES, sg.PowerIteration(3)]),
]


@pytest.mark.covering(2)
@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: " ".join(map(ident, choice.values())))
@pytest.mark.parametrize("per", ["sample", "batch"])
def test_singular_content_and_style_give_finite_values_and_gradients(name, choice, per):
    x = SINGULAR[name]
    for content, style in ((x, FULL), (FULL, x), (x, x)):
        y = whiten_color(content, style, per=per, **choice)
        assert y.isfinite().all()
        assert all(g.isfinite().all() for g in gradients(content, style, torch.ones_like(y).cumsum(-1), per=per, **choice))
        if name in ("constant", "zero"):  # no content, or no style but its mean
            mean = style.mean((0, 2, 3) if per == "batch" else (2, 3), keepdim=True)
            torch.testing.assert_close(y, mean.expand_as(y), rtol=0, atol=1e-6)


@pytest.mark.parametrize("solver", [sg.Auto(), NEWTON], ids=ident)
@pytest.mark.parametrize("name", ["few positions", "duplicate channels", "dead channels"])
def test_singular_values_are_the_definition_s(name, solver):
    x = SINGULAR[name]
    for content, style in ((x, FULL), (FULL, x)):
        y = whiten_color(content, style, eps=1e-3, solver=solver)
        assert relative_error(y, reference(content, style, 1e-3)) < 1e-4


def test_singular_content_whose_rounding_is_more_than_eps():
    content = 1e3 * features(1, 6, 1, 3, dtype=torch.float32)
    y = whiten_color(content, features(1, 6, 4, 4, seed=5, dtype=torch.float32))
    assert y.isfinite().all()


def test_singular_content_without_eps_is_refused():
    refused = r"^`whiten_color`: `covariance of content` must be positive definite, .* Raise eps\.$"
    for options in ({}, {"gradient": sg.Taylor()}):
        with pytest.raises(sg.errors.DefinitenessError, match=refused):
            whiten_color(SINGULAR["few positions"], FULL, eps=0, **options)
    content = features(1, 3, 6, 6)
    assert relative_error(whiten_color(content, content, eps=0), content) < 1e-9


# Gradients.


@pytest.mark.parametrize("solver", [sg.Auto(), sg.Lapack(), NEWTON], ids=ident)
def test_gradients_in_float32_are_those_of_float64(solver):
    content, style, G = features(2, 8, 8, 8), features(2, 8, 7, 9, seed=5), random(2, 8, 8, 8, seed=9)
    x, s = content.clone().requires_grad_(), style.clone().requires_grad_()
    expected = torch.autograd.grad((reference(x, s) * G).sum(), (x, s))  # separated eigenvalues: torch alone can
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-8)):
        for g, wanted in zip(gradients(content.to(dtype), style.to(dtype), G, solver=solver), expected, strict=True):
            assert relative_error(g, wanted) < tolerance


@pytest.mark.parametrize("name", ["few positions", "duplicate channels"])
def test_gradients_of_singular_content(name):
    """The bound of the issue: 1e-6 l_max / eps in float32."""
    content, G, eps = SINGULAR[name], random(*SINGULAR[name].shape, seed=9), 1e-3
    expected = gradients(content.double(), FULL.double(), G, eps=eps)
    largest = float(torch.linalg.eigvalsh(statistics(content)[1]).max())
    for g, wanted in zip(gradients(content, FULL, G, eps=eps), expected, strict=True):
        assert relative_error(g, wanted) < 1e-6 * largest / eps


def test_gradients_with_torch_alone_are_not():
    """Negative control: the covariance of a map without content is eps I, exactly."""
    content = SINGULAR["zero"].clone().requires_grad_()
    (g,) = torch.autograd.grad((reference(content, FULL) * random(2, 6, 3, 3)).sum(), content)
    assert not g.isfinite().all()
    assert all(g.isfinite().all() for g in gradients(content.detach(), FULL, random(2, 6, 3, 3)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_size": 1, "alpha": 0.3},
        {"per": "batch"},
        {"solver": NEWTON, "eps": 0.01},
        {"solver": sg.NewtonSchulz(steps=4)},
        {"solver": sg.Jacobi(), "gradient": sg.Exact()},
    ],
    ids=str,
)
def test_gradcheck(options):
    content, style = features(2, 2, 2, 2).requires_grad_(), features(2, 2, 1, 5, seed=5).requires_grad_()
    for train in (True, False):
        assert torch.autograd.gradcheck(WhitenColor2d(**options).train(train), (content, style))


def test_gradcheck_of_a_singular_style():
    """Three positions, four channels: the square root is not smooth there, what reaches the style is."""
    content, style = features(1, 4, 2, 4).requires_grad_(), features(1, 4, 1, 3, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(whiten_color, (content, style))
    assert torch.autograd.gradgradcheck(lambda s: whiten_color(content.detach(), s), style)


def test_gradgradcheck():
    content, style = features(1, 2, 2, 2).requires_grad_(), features(1, 2, 1, 4, seed=5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda c, s: whiten_color(c, s, eps=0.1), (content, style))


# Options.


@pytest.mark.parametrize(
    "change",
    [{"group_size": 2}, {"eps": 0.5}, {"alpha": 0.5}, {"per": "batch"}, {"solver": sg.NewtonSchulz(steps=2)}],
    ids=str,
)
def test_every_option_changes_the_result(change):
    content, style = features(2, 4, 5, 5), features(2, 4, 6, 6, seed=5)
    assert relative_error(WhitenColor2d(**change)(content, style), WhitenColor2d()(content, style)) > 1e-2


@pytest.mark.parametrize("rule", [rule for rule in GRADIENTS if rule != sg.Exact()], ids=ident)
def test_every_rule_changes_the_gradient(rule):
    """At relative gaps of 1e-6; the unguarded one needs the exact tie of dead channels."""
    X = random(20, 3) - random(20, 3).mean(0)
    X = torch.linalg.qr(X)[0].mT * torch.tensor([[1.0], [1 + 1e-6], [1 + 2e-6]], dtype=torch.float64)
    if rule == sg.Analytic():
        X[1:] = 0
    content, style, G = X.reshape(1, 3, 4, 5), features(1, 3, 4, 5), random(1, 3, 4, 5, seed=2)
    exact = gradients(content, style, G, gradient=sg.Exact())[0]
    assert exact.isfinite().all()
    assert torch.equal(gradients(content, style, G)[0], exact)
    assert not relative_error(gradients(content, style, G, gradient=rule)[0], exact) <= 1e-7


def test_both_sides_are_solved_as_asked(monkeypatch):
    solve, asked = sg.SVD.solve, []
    monkeypatch.setattr(sg.SVD, "solve", lambda self, H: asked.append(tuple(H.shape)) or solve(self, H))
    whiten_color(features(2, 4, 5, 5), features(2, 4, 6, 6, seed=5), solver=sg.SVD())
    assert asked == [(2, 1, 4, 4)] * 2


def test_layer_is_the_function():
    content, style = features(2, 4, 5, 5), features(2, 4, 6, 6, seed=5)
    options = {"group_size": 2, "eps": 1e-3, "alpha": 0.7, "per": "batch", "gradient": sg.Taylor(9), "solver": sg.Lapack()}
    found = [f(content.requires_grad_(), style) for f in (WhitenColor2d(**options), partial(whiten_color, **options))]
    assert torch.equal(*found)
    assert torch.equal(*(torch.autograd.grad(y.square().sum(), content)[0] for y in found))


# What torch.nn modules can do.

LAYERS = {
    "default": {},
    "groups": {"group_size": 2, "alpha": 0.5, "eps": 1e-3},
    "batch": {"per": "batch", "gradient": sg.Taylor(9)},
    "newton": {"group_size": 2, "solver": NEWTON},
}
each_layer = pytest.mark.parametrize("name", LAYERS)
CONTENT = features(3, 4, 5, 5, dtype=torch.float32)
STYLE = features(3, 4, 4, 6, dtype=torch.float32, seed=5)


def through_torch_save(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def through_state_dict(layer):
    assert list(layer.parameters()) == []
    new = type(layer)(**{option: getattr(layer, option) for option in ("group_size", "eps", "alpha", "per")})
    new.gradient, new.solver = layer.gradient, layer.solver
    assert new.load_state_dict(layer.state_dict()).missing_keys == []
    return new


@each_layer
@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), through_torch_save, through_state_dict]
)
def test_copies_are_the_same_layer(name, way):
    layer = WhitenColor2d(**LAYERS[name])
    new = way(layer)
    assert new is not layer
    assert repr(new) == repr(layer)
    assert torch.equal(new(CONTENT, STYLE), layer(CONTENT, STYLE))


def test_repr_tells_every_option():
    options = {"eps": 0.125, "alpha": 0.25, "per": "batch", "gradient": sg.Taylor(7), "solver": sg.Lapack()}
    text = repr(WhitenColor2d(2, **options))
    for part in ("group_size=2", "eps=0.125", "alpha=0.25", "per='batch'", "Taylor(degree=7)", "Lapack()"):
        assert part in text


@each_layer
def test_training_and_evaluation_are_the_same(name):
    layer = WhitenColor2d(**LAYERS[name])
    assert torch.equal(layer.train()(CONTENT, STYLE), layer.eval()(CONTENT, STYLE))


@pytest.mark.parametrize("name", slow_but(["groups"], LAYERS.keys()))
def test_compiles_in_one_graph(name):
    layer = WhitenColor2d(**LAYERS[name])
    x, s = CONTENT.clone().requires_grad_(), STYLE.clone().requires_grad_()
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, s)
    torch.testing.assert_close(y, layer(CONTENT, STYLE), rtol=1e-4, atol=1e-5)
    G = random(*CONTENT.shape, seed=3, dtype=torch.float32)
    for g, wanted in zip(
        torch.autograd.grad((y * G).sum(), (x, s)), gradients(CONTENT, STYLE, G, **LAYERS[name]), strict=True
    ):
        torch.testing.assert_close(g, wanted, rtol=1e-3, atol=1e-4)


def test_is_not_compiled_again_for_every_batch():
    graphs = []
    compiled = torch.compile(whiten_color, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    for n in (3, 4, 5, 6, 7):
        x, s = features(n, 4, 5, 5), features(n, 4, 4, 6, seed=5)
        torch.testing.assert_close(compiled(x, s), whiten_color(x, s))
    assert len(graphs) == 2  # for one size, and for all


@pytest.mark.slow
@each_layer
def test_compiles_with_inductor(name):
    layer = WhitenColor2d(**LAYERS[name])
    x = CONTENT.clone().requires_grad_()
    y = torch.compile(layer, fullgraph=True)(x, STYLE)
    torch.testing.assert_close(y, layer(CONTENT, STYLE), rtol=1e-4, atol=1e-5)
    y.square().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", slow_but(["groups", "batch"], LAYERS.keys()))
def test_exports_with_any_batch_size(name):
    layer = WhitenColor2d(**LAYERS[name]).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(layer, (CONTENT, STYLE), dynamic_shapes=({0: batch}, {0: batch}))
    content, style = features(7, 4, 5, 5, dtype=torch.float32, seed=3), features(7, 4, 4, 6, dtype=torch.float32, seed=8)
    torch.testing.assert_close(program.module()(content, style), layer(content, style), rtol=1e-4, atol=1e-5)


@each_layer
def test_channels_last(name):
    layer = WhitenColor2d(**LAYERS[name])
    y = layer(CONTENT.to(memory_format=torch.channels_last), STYLE.to(memory_format=torch.channels_last))
    torch.testing.assert_close(y, layer(CONTENT, STYLE), rtol=1e-4, atol=1e-5)
    assert y.is_contiguous(memory_format=torch.channels_last)


@each_layer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=ident)
def test_half_precision_is_computed_in_float32(name, dtype):
    layer, content, style = WhitenColor2d(**LAYERS[name]), CONTENT.to(dtype), STYLE.to(dtype)
    y = layer(content, style)
    assert y.dtype == dtype
    assert torch.equal(y, layer(content.float(), style.float()).to(dtype))


@each_layer
def test_autocast_and_flags_cost_no_digits(name):
    layer = WhitenColor2d(**LAYERS[name])
    expected = layer(CONTENT.double(), STYLE.double())
    with matmul_precision("medium"), torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(CONTENT, STYLE)
    assert y.dtype == torch.float32
    assert relative_error(y, expected) < 2e-5


@each_layer
def test_float64_and_meta(name):
    with torch.device("meta"):
        layer = WhitenColor2d(**LAYERS[name])
    y = layer.to(torch.float64)(CONTENT.double(), STYLE.double())
    assert y.dtype == torch.float64
    assert relative_error(layer(CONTENT, STYLE), y) < 2e-5


@each_layer
def test_empty_batch(name):
    layer, x = WhitenColor2d(**LAYERS[name]), torch.empty(0, 4, 5, 5, requires_grad=True)
    for style in (STYLE[:0], STYLE[:1]):
        y = layer(x, style)
        assert y.shape == x.shape
        y.sum().backward()
        assert x.grad.shape == x.shape


# Bad input.

BAD_OPTIONS = [
    {"group_size": 0},
    {"group_size": -2},
    {"group_size": 2.0},
    {"group_size": True},
    {"eps": -1e-6},
    {"eps": math.nan},
    {"eps": math.inf},
    {"alpha": -0.1},
    {"alpha": 1.1},
    {"alpha": math.nan},
    {"alpha": math.inf},
    {"alpha": True},
    {"alpha": "half"},
    {"per": "image"},
    {"per": None},
    {"solver": None},
    {"gradient": "taylor"},
    {"gradient": sg.Exact(), "solver": NEWTON},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_bad_options(options):
    with pytest.raises(sg.errors.OptionError, match=f"`WhitenColor2d`.*{next(iter(options))}"):
        WhitenColor2d(**options)
    with pytest.raises(sg.errors.OptionError, match="`whiten_color`"):
        whiten_color(CONTENT, STYLE, **options)


BAD_INPUTS = [
    ((CONTENT[:, :3], STYLE), {}, sg.errors.ShapeError, "same number of channels"),
    ((CONTENT, STYLE[:2]), {}, sg.errors.ShapeError, "one for each"),
    ((CONTENT[:1], STYLE), {}, sg.errors.ShapeError, "one for each"),
    ((CONTENT, STYLE[:0]), {"per": "batch"}, sg.errors.ShapeError, "at least one sample"),
    ((CONTENT[0], STYLE), {}, sg.errors.ShapeError, "`content`"),
    ((CONTENT, STYLE[0]), {}, sg.errors.ShapeError, "`style`"),
    ((CONTENT, STYLE[..., :0]), {}, sg.errors.ShapeError, "one position"),
    ((CONTENT, STYLE), {"group_size": 3}, sg.errors.OptionError, "divide the 4 channels"),
    ((CONTENT.long(), STYLE), {}, sg.errors.DtypeError, "int64"),
    ((CONTENT, STYLE.cfloat()), {}, sg.errors.DtypeError, "complex64"),
    ((CONTENT, None), {}, sg.errors.DtypeError, "NoneType"),
    ((CONTENT * math.nan, STYLE), {}, sg.errors.NonFiniteError, "`content`"),
    ((CONTENT, STYLE / 0), {}, sg.errors.NonFiniteError, "`style`"),
]


@pytest.mark.parametrize(("inputs", "options", "error", "words"), BAD_INPUTS, ids=[str(i) for i in range(len(BAD_INPUTS))])
def test_bad_input(inputs, options, error, words):
    with pytest.raises(error, match=f"`whiten_color`.*{words}"):
        WhitenColor2d(**options)(*inputs)


# Colour transfer.


def image(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, spread: float = 0.2) -> Tensor:
    """Correlated colours around the middle of the range, of few standard deviations."""
    colors = torch.rand(*shape, dtype=torch.float64, generator=generator(seed)) - 0.5
    mix = torch.rand(3, 3, dtype=torch.float64, generator=generator(seed + 1))[: shape[-3], : shape[-3]]
    colors = 0.5 + spread * torch.einsum("ij,...jhw->...ihw", mix + torch.eye(shape[-3]), colors)
    return (colors * 255).round().to(dtype) if dtype == torch.uint8 else colors.to(dtype)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=ident)
def test_colors_become_those_of_the_reference(channels, batch, dtype):
    x, r = image(*batch, channels, 20, 30, dtype=dtype), image(*batch, channels, 25, 15, dtype=dtype, seed=7, spread=0.6)
    y = color_transfer(x, r, clip=False)
    assert y.shape == x.shape
    assert y.dtype == dtype
    as_batch = (lambda x: x) if batch else (lambda x: x[None])
    for new, wanted in zip(statistics(as_batch(y)), statistics(as_batch(r)), strict=True):
        assert relative_error(new, wanted) < 1e-3
    clipped = color_transfer(x, r)
    assert torch.equal(clipped, y.clamp(0, 1))
    assert y.max() > 1 > y.min() > -1 or torch.equal(clipped, y)


def test_range_is_kept_where_the_reference_would_leave_it():
    dark, bright = 0.2 * image(3, 20, 20), 0.5 + 0.5 * torch.rand(3, 20, 20, generator=generator()).round()
    y = color_transfer(dark, bright)
    assert y.min() >= 0
    assert y.max() <= 1
    assert color_transfer(dark, bright, clip=False).max() > 1


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
def test_uint8(batch):
    x, r = image(*batch, 3, 20, 30, dtype=torch.uint8), image(3, 25, 15, dtype=torch.uint8, seed=7)
    y = color_transfer(x, r)
    assert y.dtype == torch.uint8
    assert y.shape == x.shape
    exact = color_transfer(x.double() / 255, r.double() / 255)
    assert (y.double() / 255 - exact).abs().max() <= 0.51 / 255
    assert torch.equal(color_transfer(x, r, strength=0), x)
    assert torch.equal(color_transfer(x, r.float() / 255), y)  # a reference in another dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=ident)
def test_half_precision_images(dtype):
    x, r = image(3, 20, 30, dtype=dtype), image(3, 20, 30, dtype=dtype, seed=7)
    y = color_transfer(x, r)
    assert y.dtype == dtype
    assert torch.equal(y, color_transfer(x.float(), r.float()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8], ids=ident)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (6, 5)], ids=["1 pixel", "constant"])
def test_constant_images(dtype, channels, size):
    value = torch.full((), 200, dtype=torch.uint8) if dtype == torch.uint8 else torch.full((), 0.7, dtype=dtype)
    constant, textured = value.expand(channels, *size), image(channels, 9, 9, dtype=dtype, seed=3)
    mean = textured.double().mean((1, 2), keepdim=True)
    tolerance = 0.51 if dtype == torch.uint8 else 1e-6
    assert (color_transfer(constant, textured).double() - mean).abs().max() <= tolerance  # takes the mean
    assert (color_transfer(textured, constant).double() - value).abs().max() <= tolerance  # becomes constant
    assert (color_transfer(constant, constant).double() - value).abs().max() <= tolerance
    if dtype != torch.uint8:
        for x, r in ((constant, textured), (textured, constant)):
            x, r = x.clone().requires_grad_(), r.clone().requires_grad_()
            color_transfer(x, r).square().sum().backward()
            assert x.grad.isfinite().all()
            assert r.grad.isfinite().all()


def test_gray_image_stays_quiet():
    """Where an image has no colour at all, rounding must not be blown up into some."""
    gray = image(1, 30, 30).expand(3, 30, 30)
    y = color_transfer(gray, image(3, 30, 30, seed=7), clip=False)
    exact = color_transfer(gray.double(), image(3, 30, 30, seed=7).double(), clip=False)
    assert (y - exact).abs().max() < 2e-3  # half a step of 8 bits
    X = y.double().flatten(1)
    assert torch.linalg.matrix_rank(X - X.mean(-1, keepdim=True), rtol=1e-2) == 1


def test_strength_eps_and_clip_change_the_result():
    x, r = image(3, 10, 10), image(3, 10, 10, seed=7, spread=0.7).clamp(0, 1)
    full = color_transfer(x, r, clip=False)
    torch.testing.assert_close(color_transfer(x, r, strength=0.25, clip=False), 0.75 * x + 0.25 * full)
    assert torch.equal(color_transfer(x, r, strength=0), x)
    assert relative_error(color_transfer(x, r, eps=0.1, clip=False), full) > 1e-2
    assert not torch.equal(color_transfer(x, r), full)


def test_gradcheck_of_color_transfer():
    x, r = image(3, 3, 3, dtype=torch.float64).requires_grad_(), image(3, 2, 4, dtype=torch.float64, seed=7).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, r: color_transfer(x, r, clip=False), (x, r))


def test_color_transfer_compiles_and_takes_empty_batches():
    x, r = image(2, 3, 6, 6), image(3, 5, 5, seed=7)
    compiled = torch.compile(color_transfer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, r), color_transfer(x, r), rtol=1e-4, atol=1e-5)
    assert color_transfer(x[:0], r).shape == (0, 3, 6, 6)


BAD_TRANSFERS = [
    ({"strength": math.nan}, sg.errors.OptionError, "strength"),
    ({"strength": math.inf}, sg.errors.OptionError, "strength"),
    ({"strength": -0.5}, sg.errors.OptionError, "strength"),
    ({"strength": 2}, sg.errors.OptionError, "strength"),
    ({"eps": -1.0}, sg.errors.OptionError, "eps"),
    ({"clip": 1}, sg.errors.OptionError, "clip"),
    ({"image": image(3, 4, 4, dtype=torch.uint8), "clip": False}, sg.errors.OptionError, "clip=False"),
    ({"image": 255 * image(3, 4, 4)}, sg.errors.OptionError, "Divide"),
    ({"image": torch.zeros(4, 4)}, sg.errors.ShapeError, "`image`"),
    ({"image": torch.zeros(4, 4, 3)}, sg.errors.ShapeError, "movedim"),
    ({"image": torch.zeros(4, 5, 5)}, sg.errors.ShapeError, "alpha channel"),
    ({"image": torch.zeros(3, 0, 5)}, sg.errors.ShapeError, "one pixel"),
    ({"image": torch.zeros(1, 4, 4)}, sg.errors.ShapeError, "same number of channels"),
    ({"reference": torch.zeros(2, 3, 4, 4)}, sg.errors.ShapeError, "`reference`"),
    ({"reference": torch.zeros(0, 3, 4, 4)}, sg.errors.ShapeError, "`reference`"),
    ({"image": torch.zeros(3, 4, 4, dtype=torch.int32)}, sg.errors.DtypeError, "int32"),
    ({"reference": None}, sg.errors.DtypeError, "NoneType"),
    ({"image": torch.full((3, 4, 4), math.nan)}, sg.errors.NonFiniteError, "`image`"),
]


@pytest.mark.parametrize(("change", "error", "words"), BAD_TRANSFERS, ids=[str(i) for i in range(len(BAD_TRANSFERS))])
def test_bad_transfers(change, error, words):
    arguments = {"image": image(3, 4, 4), "reference": image(3, 5, 5, seed=7), **change}
    with pytest.raises(error, match=f"`color_transfer`.*{words}"):
        color_transfer(arguments.pop("image"), arguments.pop("reference"), **arguments)


def test_values_outside_the_range_pass_without_clipping():
    assert color_transfer(255 * image(3, 4, 4), 255 * image(3, 5, 5, seed=7), clip=False).isfinite().all()


def test_example_changes_a_photograph(tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLES / "color_transfer.py"))
    example["main"](["-o", str(tmp_path / "first.png")])  # a synthetic pair
    photo, reference = (tmp_path / f"first_{name}.png" for name in ("photo", "reference"))
    output = example["main"]([str(photo), str(reference), "-o", str(tmp_path / "second.png"), "--strength", "0.5"])
    first, half = example["read"](tmp_path / "first.png"), example["read"](output)
    before, wanted = example["read"](photo), example["read"](reference)
    assert first.shape == half.shape == before.shape == (3, 240, 320)
    assert (first.double().mean((1, 2)) - wanted.double().mean((1, 2))).abs().max() < 2
    assert (half.double() - (before.double() + first.double()) / 2).abs().max() < 40  # up to what was clipped
    with pytest.raises(SystemExit):
        example["main"]([str(photo)])
    assert "give both" in capsys.readouterr().err


# Scales.


@pytest.mark.parametrize("per", ["sample", "batch"])
@pytest.mark.parametrize(
    ("content_scale", "style_scale"), [(1e20, 1.0), (1.0, 1e20), (3e37, 1e-3), (1e30, 1e35), (1e-3, 3e36)]
)
def test_covariances_that_float32_cannot_hold(per, content_scale, style_scale):
    """As at scale 1: content and style are brought within reach by powers of two."""
    content, style = CONTENT.float() * content_scale, STYLE.float() * style_scale
    y = whiten_color(content, style, group_size=2, per=per)
    eps = 1e-5 if content_scale < 1 else 0.0  # to a huge content eps is nothing
    want = whiten_color(content.double(), style.double(), group_size=2, per=per, eps=eps)
    assert (y.double() - want).abs().max() < 1e-4 * want.abs().max()
    assert whiten_color(content, style, alpha=0.5).isfinite().all()


def test_gradients_of_a_huge_content_and_style():
    scale = 2.0**70
    content, style = CONTENT.float(), STYLE.float()
    gradients = []
    for factor in (1.0, scale):
        leaves = [(factor * x).requires_grad_() for x in (content, style)]
        y = whiten_color(*leaves, eps=1e-12) / factor
        gradients.append([g * factor for g in torch.autograd.grad(y.sin().sum(), leaves)])
    for small, huge in zip(*gradients, strict=True):
        torch.testing.assert_close(small, huge, rtol=1e-3, atol=1e-3)


def test_without_the_scaling_the_covariance_overflows(monkeypatch):
    monkeypatch.setattr(coloring, "within_squares", lambda X, **_: (X, torch.ones_like(X[..., :1, :1])))
    with pytest.raises(sg.errors.NonFiniteError, match="`M` must be finite"):
        whiten_color(CONTENT.float() * 1e20, STYLE.float())


def test_ordinary_scales_are_not_touched():
    for scale in (1e-30, 1e-3, 1.0, 1e13):
        X = CONTENT.float().flatten(2) * scale
        scaled, factor = coloring.within_squares(X)
        assert torch.equal(scaled, X)
        assert (factor == 1).all()


def test_a_result_that_overflows_in_half_precision_is_one_too():
    content, style = features(1, 4, 5, 5, dtype=torch.float16), 1e6 * features(1, 4, 4, 6, dtype=torch.float32, seed=5)
    with pytest.raises(sg.errors.NonFiniteError, match=r"^`whiten_color`: the result overflows torch.float16"):
        whiten_color(content, style)
    image, reference = random(3, 8, 8, dtype=torch.float16), 1e6 * random(3, 8, 8, seed=1)
    with pytest.raises(sg.errors.NonFiniteError, match=r"^`color_transfer`: the result overflows torch.float16"):
        color_transfer(image, reference, clip=False)


def test_a_result_that_overflows_is_an_error_of_its_own():
    style = torch.tensor([3e38, -3e38]).reshape(1, 1, 1, 2)
    content = torch.eye(1, 9).reshape(1, 1, 3, 3)  # one outlier, at sqrt(8) deviations
    with pytest.raises(sg.errors.NonFiniteError, match=r"^`whiten_color`: the result overflows torch.float32"):
        whiten_color(content, style)


def test_colours_of_any_size():
    image, reference = torch.rand(3, 8, 8), torch.rand(3, 9, 9)
    want = color_transfer(image, reference, clip=False)
    y = color_transfer(image * 1e25, reference * 1e30, clip=False)
    torch.testing.assert_close(y / 1e30, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-22), (torch.float32, 1e-33), (torch.float64, 1e-170)])
def test_a_small_style_keeps_its_covariance(dtype, scale):
    """Squares of 1e-22 are no normal numbers of float32: the style's mean was left alone of it."""
    content, style = (random(2, 3, 4, 4, seed=seed).to(dtype) for seed in (0, 1))
    want = whiten_color(content, style)
    assert relative_error((whiten_color(content, scale * style) / scale).double(), want.double()) < 1e-5

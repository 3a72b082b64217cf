"""The one door: the table in its docstring holds, and nobody else asks what a strategy is."""

import ast
from pathlib import Path

import pytest
import torch

import spectralgrad
import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad.linalg import choices
from spectralgrad.linalg.elementary import InverseSqrt, Log, Sqrt
from support import cases

SOURCE = Path(spectralgrad.__file__).parent
STRATEGIES = {
    *("Rule", "Exact", "Lorentzian", "Taylor", "Clip", "Analytic", "PowerIteration"),
    *("Solver", "Auto", "Lapack", "SVD", "Jacobi", "PowerDeflation", "NewtonSchulz"),
}
PI, DEFLATION, NEWTON = sg.PowerIteration(3), sg.PowerDeflation(3), sg.NewtonSchulz()
M = torch.eye(3)


def asked_strategies(source: str) -> list[str]:
    """The strategies that a file tells apart by their class."""
    kinds: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            kinds.append(node.args[1])
        elif isinstance(node, ast.MatchClass):
            kinds.append(node.cls)
    names = [getattr(part, "id", getattr(part, "attr", "")) for kind in kinds for part in ast.walk(kind)]
    return [name for name in names if name in STRATEGIES]


def test_only_the_door_asks_what_a_strategy_is() -> None:
    asked = {path.relative_to(SOURCE).as_posix(): asked_strategies(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert [name for name, found in asked.items() if found] == ["linalg/choices.py"]


@pytest.mark.parametrize(
    "line", ["isinstance(x, Exact | Taylor)", "isinstance(s, (int, sg.Auto))", "match s:\n    case Jacobi(): pass"]
)
def test_who_asks_is_found(line: str) -> None:
    """Negative control."""
    assert asked_strategies(line)


@pytest.mark.parametrize("rule", cases.RULES, ids=cases.ident)
def test_ways_of_a_rule(rule: sg.Rule) -> None:
    assert choices.for_eigenpairs("f", rule, sg.Lapack()) == (sg.Lapack(), rule, "rule")
    assert choices.for_svd("f", rule, sg.Lapack()) == (sg.Lapack(), rule, "rule")
    way = "exact" if rule == sg.Exact() else "rule"
    assert choices.for_function("f", M, rule, sg.Lapack(), Log()).way == way
    assert choices.for_polar("f", rule, sg.Lapack()).way == way


def test_ways_without_a_rule() -> None:
    assert choices.for_eigenpairs("f", None, sg.Auto()) == (sg.Auto(), sg.Lorentzian(), "rule")
    assert choices.for_eigenpairs("f", PI, sg.Auto()) == (sg.Auto(), PI, "power iteration")
    assert choices.for_eigenpairs("f", None, DEFLATION) == (DEFLATION, "deflation")
    assert choices.for_function("f", M, None, sg.Auto(), Sqrt()) == (sg.Auto(), "exact")
    assert choices.for_function("f", M, PI, sg.Auto(), Sqrt()).way == "power iteration"
    assert choices.for_function("f", M, None, DEFLATION, Sqrt()).way == "deflation"
    assert choices.for_function("f", M, None, NEWTON, Sqrt()) == (NEWTON, "products")
    assert choices.for_polar("f", None, NEWTON) == (NEWTON, "products")
    assert choices.for_polar("f", None, sg.SVD()) == (sg.SVD(), "exact")


def test_auto_takes_inverse_roots_by_products_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "roots_by_products", lambda _: True)
    assert choices.for_function("f", M, None, sg.Auto(), InverseSqrt()) == (NEWTON, "products")
    for other in (Sqrt(), Log(), InverseSqrt(1e-3)):
        assert choices.for_function("f", M, None, sg.Auto(), other).way == "exact"
    assert choices.for_function("f", M, None, sg.Lapack(), InverseSqrt()).way == "exact"
    assert choices.for_function("f", M, sg.Taylor(9), sg.Auto(), InverseSqrt()).way == "rule"


REFUSED = {
    "eigh, NewtonSchulz": lambda: choices.for_eigenpairs("f", None, NEWTON),
    "eigh, two gradients": lambda: choices.for_eigenpairs("f", sg.Exact(), DEFLATION),
    "function, no root by products": lambda: choices.for_function("f", M, None, NEWTON, Log()),
    "function, a floor without eigenvalues": lambda: choices.for_function("f", M, None, NEWTON, Sqrt(1e-3)),
    "svd, PowerIteration": lambda: choices.for_svd("f", PI, sg.Auto()),
    "svd, Jacobi": lambda: choices.for_svd("f", None, sg.Jacobi()),
    "polar, PowerIteration": lambda: choices.for_polar("f", PI, sg.Auto()),
    "polar, two gradients": lambda: choices.for_polar("f", sg.Exact(), NEWTON),
    "pca, NewtonSchulz": lambda: choices.for_whitening("f", "pca", None, NEWTON),
    "denoising, NewtonSchulz": lambda: choices.for_denoising("f", None, NEWTON),
    "a power by products": lambda: choices.require_root_options("f", None, NEWTON, 0.3),
    "a string": lambda: choices.for_eigenpairs("f", "exact", sg.Auto()),
    "a class": lambda: choices.for_eigenpairs("f", None, sg.Lapack),
}


@pytest.mark.parametrize("ask", REFUSED.values(), ids=REFUSED)
def test_refusals_name_who_and_what_came(ask) -> None:
    with pytest.raises(OptionError, match=r"^`f`: .*(got|leave out|take another)"):
        ask()


def test_a_class_in_the_place_of_an_object_is_named() -> None:
    with pytest.raises(OptionError, match=r"Exact'>, a class: write Exact\(\.\.\.\)\.$"):
        sg.eigh(torch.eye(2), gradient=sg.Exact)
    with pytest.raises(OptionError, match=r"Auto'>, a class: write Auto\(\.\.\.\)\. NewtonSchulz"):
        sg.eigh(torch.eye(2), solver=sg.Auto)
    with pytest.raises(OptionError, match=r"Lapack'>, a class: write Lapack\(\.\.\.\)\.$"):
        sg.svd(torch.eye(2), solver=sg.Lapack)


def test_what_layers_take() -> None:
    assert choices.for_whitening("f", "zca", None, sg.Auto()) == sg.Exact()
    assert choices.for_whitening("f", "pca", None, sg.Auto()) == sg.Lorentzian()
    assert choices.for_whitening("f", "zca", None, NEWTON) is None
    assert choices.for_whitening("f", "zca", PI, sg.Auto()) == PI
    assert choices.for_denoising("f", None, DEFLATION) is None
    assert choices.for_denoising("f", sg.Taylor(9), sg.Auto()) == sg.Taylor(9)

"""The fuzz itself: it finds planted faults and makes them small, its references are right, and a little of it runs."""

import random
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from fuzz import families, sets, table
from fuzz.__main__ import main, parsed
from fuzz.catalogue import TARGETS, by_name, function_of
from fuzz.clouds import CLOUDS
from fuzz.definite import DEFINITE
from fuzz.differences import Exp, Log, Power, Scalar, Sine
from fuzz.examine import examine, module
from fuzz.minimise import snippet
from fuzz.run import Plan, Run, Tally, batch
from fuzz.samples import SAMPLES
from fuzz.singular import SINGULAR
from fuzz.targets import Target
from support import cases
from support.marks import slow_but

SEEDS = (1, 2)
HOLDS = ("eigh(Jacobi)", "sqrtm", "expm")  # at ordinary scales; issue 12 mends the rest


def planted(name: str, fault: Callable[[Tensor], Tensor]) -> Any:
    """The library with a fault behind one of its functions."""
    return module(**{name: lambda X, *args, **options: fault(getattr(sg, name)(X, *args, **options))})


def nan_for_a_tie(Y: Tensor) -> Tensor:
    """NaN where the two first diagonal entries are the same."""
    if Y.shape[-1] < 2:
        return Y
    tie = (Y[..., 0, 0] == Y[..., 1, 1])[..., None, None]
    return torch.where(tie, torch.nan, Y)


def gradient_off(Y: Tensor) -> Tensor:
    """A gradient that is 1 % too large."""
    return Y.detach() + 1.01 * (Y - Y.detach())


def value_off(Y: Tensor) -> Tensor:
    return Y + 1e-3 * Y.detach().abs()


FAULTS = {
    "NaN for a tie": (nan_for_a_tie, "is finite"),
    "a gradient 1 % off": (gradient_off, "gradient"),
    "a value 0.1 % off": (value_off, "value"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_minimised(name: str) -> None:
    fault, promise = FAULTS[name]
    library = planted("sqrtm", fault)
    run = Run(Plan(seed=3, matrices=3000, targets=("sqrtm",), workers=0), library)
    run.go()
    found = {check for (_, check, _, _) in run.tally.failed if promise in check}
    assert found
    text = "\n".join(run.snippets)
    assert "sg.sqrtm(X)" in text
    smallest = min(one.count("],") for one in run.snippets if promise in one.splitlines()[0])
    assert smallest <= 3  # one or two rows are left


def test_a_snippet_can_be_pasted() -> None:
    """It runs by itself, and the matrix in it is the one that failed, to the last bit."""
    run = Run(Plan(seed=3, matrices=800, targets=("sqrtm",), workers=0), planted("sqrtm", gradient_off))
    run.go()
    for text in run.snippets:
        names: dict[str, Any] = {}
        exec(text, names)
        assert names["X"].grad_fn is None
        assert names["g"].isfinite().all()
    one = run.tally.failures[0]
    names = {}
    exec(snippet(one, planted("sqrtm", gradient_off)), names)
    assert torch.equal(names["X"].detach(), one.X)


def test_an_error_without_a_reason_is_found() -> None:
    def refuse(X: Tensor) -> Tensor:
        if bool((X.diagonal(dim1=-2, dim2=-1) == 0).any()):
            raise RuntimeError("a zero")
        return sg.sqrtm(X)

    X = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 0.0, 2.0]))])
    failures = list(examine(by_name("sqrtm"), {}, X, module(sqrtm=refuse)).failures())
    assert [(name, place) for name, place, *_ in failures] == [("raises RuntimeError", 1)]


def test_an_error_that_is_missing_is_found() -> None:
    silent = module(inv_sqrtm=lambda X: X * 0)
    failures = list(examine(by_name("inv_sqrtm"), {}, torch.zeros(1, 2, 2), silent).failures())
    assert [name for name, *_ in failures] == ["raises nothing"]


def test_swapped_eigenvectors_are_found() -> None:
    def swapped(X: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        w, V = sg.eigh(X, **options)
        return w, V.flip(-1)

    X = cases.with_spectrum(cases.separated(4), 3)
    names = {name for name, *_ in examine(by_name("eigh"), {}, X, module(eigh=swapped)).failures()}
    assert "residual" in names


# The references, against mpmath.
SCALARS: list[tuple[Scalar, Callable[[Any], Any]]] = [
    *((Power("positive", alpha), lambda x, alpha=alpha: x**alpha) for alpha in (-3.0, -1.0, -0.5, 0.01, 0.5, 2.2, 3.0)),
    (Log("positive"), mpmath.log),
    (Exp(), mpmath.exp),
    (Sine(size=3.0), lambda x: mpmath.sin(x / 3)),
]


@pytest.mark.parametrize(("scalar", "f"), SCALARS, ids=[str(s) for s, _ in SCALARS])
def test_divided_differences(scalar: Scalar, f: Callable[[Any], Any]) -> None:
    """To some units in the last place, at gaps from none to all."""
    with mpmath.workdps(60):
        for a in (1.0, 7.3e-9, 12.5):
            for gap in (1e-16, 1e-9, 1e-4, 0.1, 0.5, 0.999999, 1 - 1e-13):
                b = a * (1 - gap)
                x, y = mpmath.mpf(a), mpmath.mpf(b)
                exact = mpmath.diff(f, x) if a == b else (f(x) - f(y)) / (x - y)
                got = float(scalar.difference(*torch.tensor([a, b], dtype=torch.float64)))
                assert abs(got - float(exact)) <= 1e-14 * abs(float(exact))


def generalized(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    inverse = torch.linalg.inv(torch.linalg.cholesky(B))
    C = inverse @ A @ inverse.mH
    w, V = sg.eigh((C + C.mH) / 2)
    return w, inverse.mH @ V


def by_torch(A: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    return (U * f(S).unsqueeze(-2)) @ Vh


TORCH = module(
    eigvalsh=torch.linalg.eigvalsh,
    svdvals=torch.linalg.svdvals,
    singular_map=by_torch,
    pinv=torch.linalg.pinv,
    nuclear_norm=lambda A: torch.linalg.svdvals(A).sum(-1),
    schatten_norm=lambda A, p: torch.linalg.vector_norm(torch.linalg.svdvals(A), p, -1),
    logdet=lambda M: torch.linalg.eigvalsh(M).log().sum(-1),
    generalized_eigh=generalized,
)


def one_percent(f: Callable[..., Any]) -> Callable[..., Any]:
    """f with a gradient that is 1 % too large."""

    def off(*args: Any) -> Any:
        Y = f(*args)
        return tuple(map(gradient_off, Y)) if isinstance(Y, tuple) else gradient_off(Y)

    return off


OFF = module(**{target.name: one_percent(getattr(TORCH, target.name)) for target in SINGULAR})


@pytest.mark.parametrize("target", SINGULAR, ids=lambda target: target.name)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
def test_references_agree_with_torch(target: Target, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Where torch is right: singular values apart."""
    X = cases.with_spectrum(cases.separated(5), 6, dtype=dtype)[:, : shape[0], : shape[1]]
    if "psd" in target.kinds:
        X = cases.with_spectrum(cases.separated(shape[0]), 6, dtype=dtype)
    findings = examine(target, target.options(X, 1.0, random.Random(1)), X.contiguous(), TORCH)
    assert [(name, size) for name, _, size, *_ in findings.failures()] == []
    wrong = examine(target, target.options(X, 1.0, random.Random(1)), X.contiguous(), OFF)  # negative control
    assert "gradient" in {name for name, *_ in wrong.failures()}


def test_families_are_finite_and_hermitian_and_follow_from_the_seed() -> None:
    for index in range(60):
        one, again = families.draw(SEEDS[0], index, 20), families.draw(SEEDS[0], index, 20)
        assert torch.equal(one.X, again.X)
        assert one.X.isfinite().all()
        if one.kind in ("psd", "hermitian"):
            assert torch.equal(one.X, one.X.mH)
    assert not torch.equal(families.draw(1, 0, 20).X.real.double().sum(), families.draw(2, 0, 20).X.real.double().sum())


def mapped(f: Callable[[Tensor], Tensor], function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with f behind each of its results."""

    def changed(*args: Any, **options: Any) -> Any:
        Y = function(*args, **options)
        return tuple(map(f, Y)) if isinstance(Y, tuple) else f(Y)

    return changed


SETS = {target.name: target for target in (*CLOUDS, *DEFINITE, *SAMPLES)}
ALIKE = ("squared", "geodesic(bures)", "mean(affine)", "mean(bures)")  # slower than their like


@pytest.mark.parametrize("target", slow_but([name for name in SETS if not any(word in name for word in ALIKE)], SETS))
def test_faults_of_sets_are_found(target: Target) -> None:
    """Values 0.1 % off, and gradients 1 % off, in what is made of pairs, at ordinary scales."""
    name = function_of(target)
    for fault, promise in ((value_off, ("value", "nearest", "rotation", "scale")), (gradient_off, ("gradient", "shift"))):
        if name.startswith("spd."):
            inner = name.removeprefix("spd.")
            library = module(spd=types.SimpleNamespace(**{**vars(sg.spd), inner: mapped(fault, getattr(sg.spd, inner))}))
        else:
            library = module(**{name: mapped(fault, getattr(sg, name))})
        plan, tally = Plan(seed=5, matrices=100, targets=(target.name,), workers=0, ordinary=True), Tally()
        for index in range(8):
            tally.add(batch(plan, index, library))
        found = {check for (_, check, _, _) in tally.failed}
        assert any(check.startswith(promise) for check in found), (promise, found)


def test_every_target_runs() -> None:
    """Each on one ordinary batch, without an alarm of its own making."""
    for target in TARGETS:
        if target.kinds[0] in sets.KINDS:
            X = families.draw(2, 0, 5, target.kinds, ordinary=True).X
        else:
            X = cases.with_spectrum(cases.separated(4), 5, seed=2)
        findings = examine(target, target.options(X, 1.0, random.Random(0)), X)
        assert [(target.name, name, size) for name, _, size, *_ in findings.failures()] == []
        assert findings.tried == len(X)


@pytest.mark.parametrize("seed", [SEEDS[0], pytest.param(SEEDS[1], marks=pytest.mark.slow)])
def test_smoke(seed: int) -> None:
    """A little of `make fuzz`."""
    plan = Plan(seed=seed, matrices=4000, targets=HOLDS, workers=0, ordinary=True)
    run = Run(plan)
    run.go()
    assert table.report(run.tally, run.snippets).count("\n") == len(HOLDS)


def test_options() -> None:
    assert parsed(["seed=7", "matrices=1e3", "only=", "device=", "workers=1"]) == Plan(7, 1000, workers=1)
    assert parsed([]).seed != parsed([]).seed
    assert parsed(["device=cuda"]).workers == 0
    with pytest.raises(SystemExit, match="unknown option"):
        parsed(["sed=7"])
    with pytest.raises(SystemExit, match="no target"):
        batch(Plan(1, only="nothing"), 0)


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seed=3", "matrices=50", "only=expm", "workers=0"]) == 0
    assert "SEED=3" in capsys.readouterr().out


def test_an_interruption_ends_cleanly() -> None:
    """With what was found so far, and the exit code of an interruption."""
    words = [sys.executable, "-m", "fuzz", "seed=3", "only=expm", "workers=1"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def heed() -> None:  # in the background a shell makes its children deaf to interrupts
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(words, cwd=Path(__file__).parent, preexec_fn=heed, **streams) as process:
        assert process.stderr is not None
        process.stderr.read(20)  # the first line of progress
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"target" in out
    assert b"SEED=3: " in out


@pytest.mark.slow  # quick: as a command with a worker above, to its end without one in test_exit_codes
def test_as_a_command_with_a_worker() -> None:
    root = Path(__file__).parent
    words = [sys.executable, "-m", "fuzz", "seed=3", "matrices=500", "only=expm", "workers=1"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "SEED=3" in done.stdout

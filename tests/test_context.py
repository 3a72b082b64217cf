"""One room asks what torch is doing and knows its private names; the compiler is told what torch itself tells it."""

import ast
import re
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest
import torch
from torch import Tensor

import spectralgrad
from spectralgrad import context
from spectralgrad.context import constant_when_compiled

SOURCE = Path(spectralgrad.__file__).parent
ASKED = re.compile(r"torch\._(?!_)|_dispatch_keys|is_(dynamo_)?compiling\(|_functorch|_current_level")


def asks(path: Path) -> list[str]:
    """The lines of code that ask torch itself what it is doing, or use a private name of torch."""
    return [line for line in ast.unparse(ast.parse(path.read_text(encoding="utf-8"))).splitlines() if ASKED.search(line)]


def test_one_room_asks_torch() -> None:
    assert {path.name for path in SOURCE.rglob("*.py") if asks(path)} == {"context.py"}


def test_a_question_elsewhere_is_found(tmp_path: Path) -> None:
    """Negative control."""
    for code in ("torch.compiler.is_compiling()", "torch._C._has_storage(x)", "x._dispatch_keys()"):
        (tmp_path / "a.py").write_text(f"y = {code}\n")
        assert asks(tmp_path / "a.py"), code


def test_private_names_are_listed_and_there() -> None:
    """Each that the room uses is in its table, and this torch has it."""
    names = set()
    for node in ast.walk(ast.parse(Path(context.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"torch\._[\w.]+", path := ast.unparse(node)):
            names.add(path.removeprefix("torch."))
    used = {name for name in names if not any(other.startswith(f"{name}.") for other in names)}
    assert used - {"_C.DispatchKey.Conjugate", "_C.DispatchKey.Negative", "_C.DispatchKey.CPU", "_C"} == set(context.PRIVATE)
    for name, (first, _) in context.PRIVATE.items():
        assert first == "2.9"
        assert reduce(getattr, name.split("."), torch) is not None


QUESTIONS = (context.tracing, context.exporting, context.in_torch_func, context.transforming, context.in_backward)


def test_a_plain_call_answers_no_to_every_question_about_transforms() -> None:
    x = torch.ones(2)
    assert not any(question() for question in QUESTIONS)
    assert not context.is_transformed(x)
    assert not context.in_batched_backward(x)


def test_the_table_of_answers() -> None:
    """Row by row of the room's doc-string, inside each transform."""
    seen: dict[str, tuple[bool, ...]] = {}

    def ask(place: str, x: Tensor) -> Tensor:
        asked = (context.transforming(), context.is_transformed(x), context.may_read(x), context.checking(x))
        seen[place] = (*asked, context.readable(x) is not None, context.is_constant(x), context.has_memory(x))
        return x * 1

    x = torch.ones(2)
    torch.func.vmap(lambda x: ask("vmap", x))(x)
    torch.func.grad(lambda x: ask("grad", x).sum())(x)
    torch.func.jvp(lambda x: ask("jvp", x), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        ask("forward", x)
    ask("plain", x)
    assert seen == {
        #        transforming  is_transformed  may_read  checking  readable  is_constant  has_memory
        "vmap": (True, True, False, True, False, False, False),
        "grad": (True, True, False, True, True, False, False),
        "jvp": (True, True, False, True, True, False, False),
        "forward": (True, False, True, True, True, False, True),
        "plain": (False, False, True, True, True, True, True),
    }


def loads_the_compiler(code: str) -> bool:
    """Whether a new Python has loaded `torch._dynamo` after ``code``."""
    code = f"import sys\n{code}\nprint('torch._dynamo' in sys.modules)"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "True\n"


def test_the_library_does_not_load_the_compiler() -> None:
    """Neither when imported nor in a training step of a layer. It takes ten times as long to load as we do."""
    step = "spectralgrad.nn.DecorrelatedBatchNorm1d(2)(torch.eye(2, requires_grad=True)).sum().backward()"
    assert not loads_the_compiler(f"import torch, spectralgrad\n{step}")


@pytest.mark.slow
def test_the_compiler_is_seen_when_it_is_loaded() -> None:
    """Negative control."""
    assert loads_the_compiler("import torch\n@torch.compiler.assume_constant_result\ndef f(): pass")


def test_the_mark_is_the_one_that_torch_sets() -> None:
    """If torch marks such functions in another way one day, this says so."""

    def ours() -> None: ...

    def of_torch() -> None: ...

    assert constant_when_compiled(ours) is ours
    torch.compiler.assume_constant_result(of_torch)
    assert vars(ours) == vars(of_torch) != {}


def test_a_marked_function_is_called_while_tracing() -> None:
    def untraceable() -> float:
        torch._dynamo.graph_break()
        return 3.0

    def scaled(x: Tensor) -> Tensor:
        return untraceable() * x

    compiled = torch.compile(scaled, fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(torch.ones(2))
    torch.compiler.reset()
    constant_when_compiled(untraceable)
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    torch.compiler.reset()

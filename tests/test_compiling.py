"""The compiler is not loaded with the library, and is told the same as by torch's own decorator."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from spectralgrad.compiling import constant_when_compiled


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

"""What all treatments share: the hook of the step stays outside compiled code."""

from typing import Any

import pytest
import torch
from torch import nn

from spectralgrad.orthogonal.treatment import Treatment


class Witness(Treatment):
    order = 0

    def act(self, *_: Any) -> None:
        self.compiled = torch.compiler.is_compiling()


@pytest.mark.filterwarnings("ignore")  # of torch.compile, about the profiler
def test_a_compiled_step_does_not_compile_the_treatments() -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    optimizer = torch.optim.SGD([p], lr=0.5)
    witness = Witness(optimizer, p)
    torch.compile(optimizer.step, backend="eager")()
    assert p.tolist() == [0.5, 0.5]
    assert not witness.compiled
    torch.compiler.reset()

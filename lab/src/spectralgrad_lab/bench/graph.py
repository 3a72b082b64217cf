"""A training step with whitening, captured in a CUDA graph and replayed, against its own eager run."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy

from spectralgrad_lab.models.resnet import resnet_digits

from .case import Case
from .inputs import normal
from .layers import CLASSES, whitening_of
from .measure import Effort
from .peers import OURS
from .rows import Row

STEPS = 20
WARM_UP = 3


class CapturedTraining:
    """A small network, its optimizer and one static batch, which every step reads; `restart` puts all back in place."""

    def __init__(self, case: Case, device: torch.device) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net: Module = resnet_digits(num_classes=CLASSES, norm=whitening_of(case.d)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.9)
        self.batches = [normal(*case.shape, device=device, seed=seed) for seed in range(STEPS)]
        self.images = self.batches[0].clone()
        self.labels = torch.arange(case.shape[0], device=device) % CLASSES
        self.loss = torch.zeros((), device=device)
        self.start = {name: value.clone() for name, value in self.net.state_dict().items()}

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)  # gradients keep their place in memory: the graph writes there
        loss = cross_entropy(self.net(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    @torch.no_grad()
    def restart(self) -> None:
        """In place, so that a captured graph still finds everything. A momentum of 0 is as good as none."""
        for name, value in self.net.state_dict().items():
            value.copy_(self.start[name])
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()

    def curve(self, step: Callable[[], None]) -> Tensor:
        """The losses (STEPS,) from the start."""
        self.restart()
        losses = []
        for batch in self.batches:
            self.images.copy_(batch)
            step()
            losses.append(self.loss.clone())
        return torch.stack(losses)


def check_graph(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """The largest relative difference between the losses of the replayed and the eager run, both from the same start."""
    # Atomic additions of cuDNN would make two eager runs differ too.
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        training = CapturedTraining(case, device)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                training.step()
        torch.cuda.current_stream(device).wait_stream(side)
        eager = training.curve(training.step)
        again = training.curve(training.step)
        training.restart()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            training.step()
        replayed = training.curve(graph.replay)
        torch.cuda.synchronize(device)
    scale = eager.abs().clamp(min=torch.finfo(eager.dtype).tiny)
    found = {
        OURS: float(((replayed - eager) / scale).abs().max()),
        "eager again": float(((again - eager) / scale).abs().max()),
    }
    return [
        Row(
            case.section,
            f"loss of {STEPS} steps",
            case.d,
            case.batch,
            "error",
            found[OURS],
            target=case.target,
            at_least=False,
            baseline="eager again",
            errors=found,
        )
    ]

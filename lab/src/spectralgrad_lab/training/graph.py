"""The steps of an epoch as replays of one CUDA graph: fetching, augmenting, forward, backward and the optimizer's step.

All that changes from step to step lies on the device: the order of the images, their crops, the learning rates, and the
number of the step, which the graph counts itself. The first steps run by hand, as do those that a monitor looks at; they
and the replays are the same operations on the same tensors.
"""

import gc
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from spectralgrad_lab.data import Dataset, Epoch
from spectralgrad_lab.data.batches import augmented

WARM = 3  # steps by hand before the capture: libraries choose their algorithms, the optimizer makes its state

Step = Callable[[Tensor, Tensor, int], None]  # images, labels, size of the batch


class StepGraph:
    """Takes the steps of epochs whose images lie on a GPU; captured, unless a step makes the host wait.

    Args:
        step: one step, which neither returns nor keeps tensors that are not there before it.
        data: on the device.
        batch: images of a step; those that do not fill one are left out.
        lr: what the optimizer reads, on the device.
        wanted: whether to capture at all.
    """

    def __init__(self, step: Step, data: Dataset, batch: int, lr: Tensor, *, wanted: bool = True) -> None:
        self.take, self.data, self.batch, self.lr = step, data, batch, lr
        self.steps = len(data.train_y) // batch  # of an epoch
        device, used = data.train_y.device, self.steps * batch
        self.order = torch.zeros(used, dtype=torch.int64, device=device)
        self.shift = torch.zeros(2, used, dtype=torch.int64, device=device)
        self.mirrored = torch.zeros(used, dtype=torch.bool, device=device)
        self.rates = torch.zeros(self.steps, device=device)
        self.done = torch.zeros(1, dtype=torch.int64, device=device)  # steps of this epoch
        self.within = torch.arange(batch, device=device)
        self.border = 0
        self.by_hand = 0  # steps taken so
        self.graph: torch.cuda.CUDAGraph | None = None
        self.wanted = wanted

    def begin(self, epoch: Epoch, rates: Tensor) -> None:
        """Start an epoch with its order and its learning rates (steps,)."""
        used = len(self.order)
        self.order.copy_(epoch.order[:used])
        self.shift.copy_(epoch.shift[:, :used])
        self.mirrored.copy_(epoch.mirrored[:used])
        self.rates.copy_(rates)
        self.done.zero_()
        self.border = epoch.border if epoch.augment else 0

    def step(self, *, watched: bool = False) -> None:
        """Take the next step; by hand if somebody watches what happens inside."""
        if self.graph is not None and not watched:
            self.graph.replay()
            return
        if self.wanted and self.by_hand == WARM and not watched:
            self.graph = self._capture()
            self.wanted = self.graph is not None
            self.step()
            return
        if self.wanted and self.by_hand == WARM - 1:
            self.wanted = not _waits(self._step)
        else:
            self._step()
        self.by_hand = min(self.by_hand + 1, WARM)

    def _step(self) -> None:
        self.lr.copy_(self.rates[self.done][0])
        where = self.done * self.batch + self.within
        index = self.order[where]
        x = self.data.train_x[index]
        if self.border:
            x = augmented(x, self.border, self.shift[:, where], self.mirrored[where])
        self.take(x, self.data.train_y[index], self.batch)
        self.done += 1

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        """Record a step without taking it; None where CUDA refuses."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        gc.collect()
        gc.disable()  # what it frees in the middle, an older graph, would end the capture
        try:
            with torch.cuda.graph(graph):
                self._step()
        except (RuntimeError, torch.AcceleratorError) as error:
            warnings.warn(f"a step cannot be captured, so each is launched by hand: {error}", stacklevel=2)
            return None
        finally:
            gc.enable()
        return graph


def _waits(step: Callable[[], None]) -> bool:
    """Take a step; whether the host waited for the device in it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # itself a warning: a prototype
        told.clear()
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return any("synchroniz" in str(warning.message) for warning in told)

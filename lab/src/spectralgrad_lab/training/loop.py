"""One trial in memory: a network, its data on a device, and what one epoch of training and one evaluation do."""

import time
from bisect import bisect_right
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn.functional import cross_entropy

from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad_lab.data import Source
from spectralgrad_lab.data.batches import standardised
from spectralgrad_lab.models.build import build, watched_layers
from spectralgrad_lab.records.trial import Trial

from .checkpoint import State, bases_of, random_state, set_bases, set_random_state
from .treatments import penalty, synchronise, treat_step, treat_weight
from .watch import Diverged, Finiteness, failed_attempts, figures

MEASURED = 4  # steps of an epoch that the condition monitor records, about
LOOK = 50  # steps between two looks at a GPU's flag for numbers that are not finite
TOP = 5  # guesses of the top-5 error
EVALUATED = 512  # images of a batch in evaluation, up to 64 pixels


class Run:
    """A trial that is being trained.

    Args:
        trial: what to train.
        data: its data set.
        fabric: launched; it knows the device, the precision and the ranks.

    Raises:
        OptionError: the trial's options do not go together.
    """

    def __init__(self, trial: Trial, data: Source, fabric: Fabric) -> None:
        self.trial, self.fabric = trial, fabric
        self.step = 0  # steps done
        # Fabric's own double precision would round the outputs to float32.
        self.dtype = torch.float64 if trial.precision == "64-true" else torch.float32
        self.model = build(trial, data.classes, data.channels, data.size).to(fabric.device, self.dtype)
        treat_weight(self.model, trial)
        watched = watched_layers(self.model)
        if fabric.world_size > 1:
            synchronise(self.model, dist.group.WORLD)
            watched = [] if trial.layer == "bn" else watched  # its watch went with it
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=trial.lr, momentum=trial.momentum, weight_decay=trial.weight_decay
        )
        treat_step(optimizer, self.model, trial)
        self.penalty = penalty(self.model, trial)
        self.net, self.optimizer = fabric.setup(self.model, optimizer)
        self.data = data.on(fabric.device)
        self.steps = -(-data.train_count // trial.batch)  # of an epoch
        self.watched = watched if fabric.global_rank == 0 else []
        self.monitor: ConditionMonitor | None = None

    def state(self, epoch: int) -> State:
        """All that the next epoch depends on."""
        return {
            "key": self.trial.key,
            "epoch": epoch,
            "step": self.step,
            "model": self.model.state_dict(),
            "bases": bases_of(self.model),
            "optimizer": self.optimizer.state_dict(),
            "random": random_state(),
        }

    def restore(self, state: State) -> int:
        """Take up a state; returns the epoch to go on with."""
        self.model.load_state_dict(state["model"])
        set_bases(self.model, state.get("bases", {}), self.fabric.device)
        self.optimizer.load_state_dict(state["optimizer"])
        set_random_state(state["random"])
        self.step = int(state["step"])
        return int(state["epoch"]) + 1

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Train one epoch, then evaluate: the fields of an epoch line. Errors are in percent.

        Raises:
            Diverged: a loss, gradient or weight is not finite.
        """
        if self.monitor is None and self.watched:
            every = max(1, self.steps // MEASURED)
            self.monitor = ConditionMonitor(self.model, layers=self.watched, every=every, start=self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.trial.lr * self.trial.gamma ** bisect_right(self.trial.milestones, epoch)
        failures, start = failed_attempts(), time.perf_counter()
        train_loss, train_error = self._train(epoch)
        seconds = time.perf_counter() - start
        self._require_finite_weights()
        test_loss, test_error, top5_error = self._evaluate()
        if not abs(test_loss) < float("inf"):
            raise Diverged("the test loss is not finite", self.step)
        return {
            "epoch": epoch,
            "step": self.step,
            "train_loss": train_loss,
            "train_error": train_error,
            "test_loss": test_loss,
            "test_error": test_error,
            "top5_error": top5_error,
            "seconds": seconds,
            "monitor": {**self._figures(), "solver_failures": failed_attempts() - failures},
            **({"broken": self._broken()} if self.trial.broken == "skip" else {}),
        }

    def _train(self, epoch: int) -> tuple[float, float]:
        trial, fabric = self.trial, self.fabric
        device = fabric.device
        batches = self.data.train_batches(
            trial.batch,
            seed=trial.seed,
            epoch=epoch,
            augment=trial.augment,
            rank=fabric.global_rank,
            world=fabric.world_size,
        )
        totals = torch.zeros(2, dtype=torch.float64, device=device)  # loss, errors
        finite = Finiteness(device)
        every = 1 if device.type == "cpu" else LOOK
        self.net.train()
        try:
            for x, y, samples in batches:
                totals += self._step(x, y, samples, finite, every)
        except Diverged:
            raise
        except Exception:
            finite.check()  # an error long after the first NaN is that NaN's
            raise
        finite.check()
        loss, errors = (totals / self.data.train_count).tolist()
        return loss, 100 * errors

    def _step(self, x: Tensor, y: Tensor, samples: int, finite: Finiteness, every: int) -> Tensor:
        """One step; the sums of losses and errors (2,) over all ranks."""
        self.optimizer.zero_grad()
        logits = self.net(standardised(x, self.data, self.dtype))
        loss = cross_entropy(logits, y, reduction="sum")
        # Over all ranks the mean of this is the mean over the whole batch, however it was shared out.
        objective = loss * (self.fabric.world_size / samples)
        if self.penalty is not None:
            objective = objective + self.penalty()
        self.fabric.backward(objective)
        sums = torch.stack([loss.detach().double(), (logits.detach().argmax(1) != y).sum().double()])
        sums = self._over_ranks(sums)
        scaled = self.trial.precision.startswith("16")  # a scaler skips what is not finite
        gradients = [] if scaled else [p.grad for p in self.model.parameters() if p.grad is not None]
        finite.note(self.step + 1, sums[0] + objective.detach(), gradients)
        if self.step % every == 0:
            finite.check()
        self.optimizer.step()
        if self.monitor is not None:
            self.monitor.step()
        self.step += 1
        return sums

    @torch.no_grad()
    def _evaluate(self) -> tuple[float, float, float]:
        """Mean loss, error and top-5 error in percent over the test set, in evaluation mode."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        size = EVALUATED if self.data.size <= 64 else self.trial.batch
        totals = torch.zeros(4, dtype=torch.float64, device=self.fabric.device)  # loss, errors, all five wrong, images
        self.net.eval()
        for x, y in self.data.test_batches(size, rank=rank, world=world):
            logits = self.net(standardised(x, self.data, self.dtype))
            loss = cross_entropy(logits, y, reduction="sum")
            near = logits.topk(min(TOP, logits.shape[1])).indices != y.unsqueeze(1)  # (N, 5), the best first
            images = torch.full_like(loss, len(y))
            totals += torch.stack([loss, near[:, 0].sum(), near.all(1).sum(), images]).double()
        *sums, count = self._over_ranks(totals).tolist()
        loss, errors, all_five = (value / count for value in sums)
        return loss, 100 * errors, 100 * all_five

    def _broken(self) -> list[str]:
        """The files that were skipped so far, on all ranks."""
        found: list[Any] = [self.data.broken] * self.fabric.world_size
        if self.fabric.world_size > 1:
            dist.all_gather_object(found, self.data.broken)
        return sorted({name for names in found for name in names})

    def _over_ranks(self, sums: Tensor) -> Tensor:
        if self.fabric.world_size > 1:
            dist.all_reduce(sums)
        return sums

    def _require_finite_weights(self) -> None:
        largest = torch.nn.utils.get_total_norm([p.detach() for p in self.model.parameters()], float("inf"))
        if not bool(torch.isfinite(largest)):
            raise Diverged("a weight is not finite", self.step)

    def _figures(self) -> dict[str, float | None]:
        if self.monitor is None:
            return {}
        records, self.monitor.records = self.monitor.records, []
        return figures(records, self.trial.eps)

    def close(self) -> None:
        """Take the monitor off."""
        if self.monitor is not None:
            self.monitor.detach()

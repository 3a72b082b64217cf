"""One trial in memory: a network, its data on a device, and what one epoch of training and one evaluation do."""

import time
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy

from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad.errors import OptionError
from spectralgrad_lab.data import Dataset, Epoch, Source
from spectralgrad_lab.data.batches import standardised
from spectralgrad_lab.models.build import build, inputs_of, watched_layers
from spectralgrad_lab.records.trial import Trial

from .checkpoint import State, bases_of, random_state, set_bases, set_random_state
from .graph import StepGraph
from .schedule import rate
from .treatments import penalty, synchronise, treat_step, treat_weight
from .watch import Diverged, Finiteness, failed_attempts, figures

MEASURED = 4  # steps of an epoch that the condition monitor records, about
LOOK = 50  # steps between two looks at a GPU's flag for numbers that are not finite
TOP = 5  # guesses of the top-5 error
EVALUATED = 512  # images of a batch in evaluation, up to 64 pixels


class Standardised(Module):
    """A network that takes the images as they are stored, uint8: Fabric would round numbers to bfloat16 on the way."""

    def __init__(self, model: Module, data: Source, dtype: torch.dtype, layout: torch.memory_format) -> None:
        super().__init__()
        self.model, self.data, self.dtype, self.layout = model, data, dtype, layout

    def forward(self, x: Tensor) -> Tensor:
        x = standardised(x, self.data, self.dtype).contiguous(memory_format=self.layout)
        return self.model(x)  # type: ignore[no-any-return]


class Run:
    """A trial that is being trained.

    Args:
        trial: what to train.
        data: its data set.
        fabric: launched; it knows the device, the precision and the ranks.
        graph: on one GPU, with ``drop_last``, steps are replays of one CUDA graph where that is possible.

    Raises:
        OptionError: the trial's options do not go together.
    """

    def __init__(self, trial: Trial, data: Source, fabric: Fabric, *, graph: bool = True) -> None:
        self.trial, self.fabric = trial, fabric
        self.step = 0  # steps done
        on_gpu = fabric.device.type == "cuda"
        # Fabric's own double precision would round the outputs to float32.
        self.dtype = torch.float64 if trial.precision == "64-true" else torch.float32
        self.model = build(trial, data.classes, data.channels, data.size).to(fabric.device, self.dtype)
        layout = torch.channels_last if on_gpu else torch.contiguous_format
        self.model.to(memory_format=layout)  # type: ignore[call-overload]
        treat_weight(self.model, trial)
        watched = watched_layers(self.model)
        if fabric.world_size > 1:
            synchronise(self.model, dist.group.WORLD)
            watched = [] if trial.layer == "bn" else watched  # its watch went with it
        self.data = data.on(fabric.device)
        in_memory = isinstance(self.data, Dataset) and self.data.train_x.is_cuda
        steady = in_memory and fabric.world_size == 1 and trial.drop_last
        self.lr = torch.zeros((), device=fabric.device) if steady else None  # a graph knows this tensor
        optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=trial.lr if self.lr is None else self.lr,
            momentum=trial.momentum,
            weight_decay=trial.weight_decay,
            nesterov=trial.nesterov,
            fused=on_gpu,
        )
        treat_step(optimizer, self.model, trial)
        self.penalty = penalty(self.model, trial)
        taken = torch.bfloat16 if trial.precision == "bf16-true" else self.dtype  # as the weights that Fabric rounds
        self.net, self.optimizer = fabric.setup(Standardised(self.model, self.data, taken, layout), optimizer)
        images = data.train_count
        if trial.drop_last and images < trial.batch:
            raise OptionError(
                f"`Trial`: with drop_last a batch must not be larger than the {images} images, got batch {trial.batch}. "
                "Take a smaller one, or more images."
            )
        self.steps = images // trial.batch if trial.drop_last else -(-images // trial.batch)  # of an epoch
        self.totals = torch.zeros(2, dtype=torch.float64, device=fabric.device)  # loss and errors of an epoch
        self.finite = Finiteness(fabric.device)
        self.graph: StepGraph | None = None
        if self.lr is not None and isinstance(self.data, Dataset):
            # A gradient scaler asks the device what to do next. No treatment does.
            wanted = graph and not trial.precision.startswith("16")
            self.graph = StepGraph(self._step, self.data, trial.batch, self.lr, wanted=wanted)
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
            "precision": self.fabric.strategy.precision.state_dict(),  # a gradient scaler's scale; else empty
            "random": random_state(),
        }

    def restore(self, state: State) -> int:
        """Take up a state; returns the epoch to go on with."""
        self.model.load_state_dict(state["model"])
        set_bases(self.model, state.get("bases", {}), self.fabric.device)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.lr is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr
        if state.get("precision"):  # older checkpoints have none
            self.fabric.strategy.precision.load_state_dict(state["precision"])
        set_random_state(state["random"])
        self.step = int(state["step"])
        self.finite = Finiteness(self.fabric.device, self.step)
        return int(state["epoch"]) + 1

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Train one epoch, then evaluate: the fields of an epoch line. Errors are in percent.

        Raises:
            Diverged: a loss, gradient or weight is not finite.
        """
        if self.monitor is None and self.watched:
            every = max(1, self.steps // MEASURED)
            self.monitor = ConditionMonitor(
                self.model, layers=self.watched, every=every, start=self.step, inputs=inputs_of(self.model)
            )
        failures, start = failed_attempts(), time.perf_counter()
        train_loss, train_error = self._train(epoch)
        seconds = time.perf_counter() - start
        self._require_finite_weights()
        tested = (epoch + 1) % self.trial.evaluate == 0 or epoch + 1 == self.trial.epochs
        return {
            "epoch": epoch,
            "step": self.step,
            "train_loss": train_loss,
            "train_error": train_error,
            **(self._evaluate() if tested else {}),
            "seconds": seconds,
            "graph": self.graph is not None and self.graph.graph is not None,
            "monitor": {**self._figures(), "solver_failures": failed_attempts() - failures},
            **({"broken": self._broken()} if self.trial.broken == "skip" else {}),
        }

    def _train(self, epoch: int) -> tuple[float, float]:
        """Mean loss, and error in percent, over the images of an epoch as they were met."""
        trial = self.trial
        self.totals.zero_()
        self.net.train()
        try:
            if self.graph is not None:
                self._replay(self.graph, epoch)
            else:
                self._walk(epoch)
        except Diverged:
            raise
        except Exception:
            self.finite.check()  # an error long after the first NaN is that NaN's
            raise
        self.finite.check()
        seen = self.steps * trial.batch if trial.drop_last else self.data.train_count
        loss, errors = (self._over_ranks(self.totals) / seen).tolist()
        return loss, 100 * errors

    def _replay(self, graph: StepGraph, epoch: int) -> None:
        """An epoch in which the host never waits."""
        data, trial = graph.data, self.trial
        order = Epoch(data.train_x, data.train_y, seed=trial.seed, epoch=epoch, augment=trial.augment, flip=data.flip)
        rates = [rate(self.trial, self.step + i, self.steps) for i in range(self.steps)]
        graph.begin(order, torch.tensor(rates))
        for _ in range(self.steps):
            graph.step(watched=self.monitor is not None and self.monitor.recording)
            self._count()

    def _walk(self, epoch: int) -> None:
        """An epoch batch by batch: on the CPU, over several ranks, streamed, with batches of unequal size."""
        trial, fabric = self.trial, self.fabric
        look = 1 if fabric.device.type == "cpu" else LOOK
        batches = self.data.train_batches(
            trial.batch,
            seed=trial.seed,
            epoch=epoch,
            augment=trial.augment,
            rank=fabric.global_rank,
            world=fabric.world_size,
            drop_last=trial.drop_last,
        )
        for x, y, samples in batches:
            for group in self.optimizer.param_groups:
                group["lr"] = rate(trial, self.step, self.steps)
            self._step(x, y, samples, check=self.step % look == 0)
            self._count()

    def _count(self) -> None:
        if self.monitor is not None:
            self.monitor.step()
        self.step += 1

    def _step(self, x: Tensor, y: Tensor, samples: int, *, check: bool = False) -> None:
        """One step; the sums of losses and errors of this rank's images go to ``totals``."""
        self.optimizer.zero_grad()
        logits = self.net(x)
        loss = cross_entropy(logits, y, reduction="sum")
        # Over all ranks the mean of this is the mean over the whole batch, however it was shared out.
        objective = loss * (self.fabric.world_size / samples)
        if self.penalty is not None:
            objective = objective + self.penalty()
        self.fabric.backward(objective)
        self.totals += torch.stack([loss.detach().double(), (logits.detach().argmax(1) != y).sum().double()])
        scaled = self.trial.precision.startswith("16")  # a scaler skips what is not finite
        gradients = [] if scaled else [p.grad for p in self.model.parameters() if p.grad is not None]
        self.finite.note(self._over_ranks(objective.detach().clone()), gradients)
        if check:
            self.finite.check()
        self.optimizer.step()

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        """Mean loss, error and top-5 error in percent over the test set, in evaluation mode.

        Raises:
            Diverged: the loss is not finite.
        """
        rank, world = self.fabric.global_rank, self.fabric.world_size
        size = EVALUATED if self.data.size <= 64 else self.trial.batch
        totals = torch.zeros(4, dtype=torch.float64, device=self.fabric.device)  # loss, errors, all five wrong, images
        self.net.eval()
        for x, y in self.data.test_batches(size, rank=rank, world=world):
            logits = self.net(x)
            loss = cross_entropy(logits, y, reduction="sum")
            near = logits.topk(min(TOP, logits.shape[1])).indices != y.unsqueeze(1)  # (N, 5), the best first
            images = torch.full_like(loss, len(y))
            totals += torch.stack([loss, near[:, 0].sum(), near.all(1).sum(), images]).double()
        *sums, count = self._over_ranks(totals).tolist()
        loss, errors, all_five = (value / count for value in sums)
        if not abs(loss) < float("inf"):
            raise Diverged("the test loss is not finite", self.step)
        return {"test_loss": loss, "test_error": 100 * errors, "top5_error": 100 * all_five}

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

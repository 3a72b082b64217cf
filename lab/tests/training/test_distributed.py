"""Two ranks under torchrun (gloo, CPU) train as one process does with the same batch.

This file is also what torchrun runs: `python test_distributed_training.py FOLDER SYNCHRONISED`.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.training import loop
from spectralgrad_lab.training.train import run_trial

pytestmark = pytest.mark.filterwarnings("ignore:`folder`.*broken:UserWarning")
STEPS, CLOSE = 20, 1e-6
# One step an epoch, so that every step's loss is recorded. 33 images: the ranks get 16 and 17.
BASE = Trial(
    width=8, epochs=STEPS, batch=33, train_samples=33, test_samples=20, lr=0.05, milestones=(10,), precision="64-true"
)
TRIALS = {
    "bn": BASE,
    "zca": replace(BASE, layer="zca", method="exact", d=16, eps=1e-2),
    "treated": replace(BASE, layer="zca", method="taylor", d=8, eps=1e-2, treatments=("OW", "NOG", "OLR")),
    "loss": replace(BASE, layer="pca", method="lorentzian", d=4, eps=1e-2, treatments=("OL",)),
    "denoise": replace(BASE, layer="denoise", method="taylor", energy=0.95),
    "streamed": replace(BASE, data="folder", model="resnet18", width=4, broken="skip"),
    "pooled": replace(BASE, model="digits-gcp", layer="gcp", method="exact", d=8, eps=1e-2),
}


def train(folder: Path, *, synchronised: bool) -> None:
    if not synchronised:
        loop.synchronise = lambda *_: None
    store = Store(folder)
    for trial in TRIALS.values():
        run_trial(trial, store, data=pictures(folder.parent), device="cpu")


def pictures(folder: Path) -> Path:
    """Red and blue ones for the ranks to share; one for training and one for test are broken."""
    root = folder / "pictures"
    if not root.exists():  # one process draws them, before torchrun's two
        for part in ("train", "val"):
            for name, (red, blue) in {"cats": (200, 0), "dogs": (0, 200)}.items():
                (root / part / name).mkdir(parents=True)
                for index in range(5 if part == "train" else 2):
                    Image.new("RGB", (20, 30), (red, 10 * index, blue)).save(root / part / name / f"{index}.png")
            (root / part / "dogs" / "1.png").write_bytes(b"")
    return root


def torchrun(folder: Path, *, synchronised: bool = True) -> None:
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, str(folder), str(synchronised)]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def losses(folder: Path) -> dict[str, list[float]]:
    store = Store(folder)
    found = {}
    for name, trial in TRIALS.items():
        outcome = store.outcome(trial)
        assert outcome is not None
        assert (outcome.status, len(outcome.epochs)) == ("finished", STEPS), outcome.reason
        assert [epoch["step"] for epoch in outcome.epochs] == list(range(1, STEPS + 1))
        assert sum(line["kind"] == "start" for line in store.lines(trial)) == 1  # rank 0 alone records
        assert outcome.epochs[-1].get("broken") in (None, ["train/dogs/1.png", "val/dogs/1.png"])
        found[name] = [epoch["train_loss"] for epoch in outcome.epochs]
    return found


@pytest.mark.slow
def test_two_ranks_have_the_losses_of_one_process(tmp_path: Path) -> None:
    train(tmp_path / "one", synchronised=True)
    torchrun(tmp_path / "two")
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    for name in TRIALS:
        assert one[name][0] - one[name][-1] > 0.05, name  # it learns: the losses are no constant
        assert two[name] == pytest.approx(one[name], abs=CLOSE, rel=CLOSE), name


@pytest.mark.slow
def test_without_synchronised_norms_the_losses_differ(tmp_path: Path) -> None:
    """The control: each rank by its own statistics is another training."""
    train(tmp_path / "one", synchronised=True)
    torchrun(tmp_path / "two", synchronised=False)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    for name in TRIALS:
        assert max(abs(a - b) for a, b in zip(one[name], two[name], strict=True)) > 1e3 * CLOSE, name


if __name__ == "__main__":
    train(Path(sys.argv[1]), synchronised=sys.argv[2] == "True")

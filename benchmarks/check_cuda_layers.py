"""What the layers promise on CUDA: `python benchmarks/check_cuda_layers.py` prints a line a check; exit code 1 on a miss."""

import copy
import sys
import tempfile

import torch
import torch.distributed
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad.nn.coloring import WhitenColor2d
from spectralgrad.nn.decorrelation import DecorrelatedBatchNorm2d
from spectralgrad.nn.denoise import PCADenoise2d
from spectralgrad.nn.pooling import CovariancePool2d
from spectralgrad.orthogonal import NearestOrthogonalGradient, OptimalLearningRate

failures = 0


def report(name: str, ok: bool, detail: str) -> None:
    global failures
    failures += not ok
    print(f"{'ok  ' if ok else 'MISS'} {name}: {detail}", flush=True)


def error(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.norm(a.double().cpu() - b.double().cpu()) / torch.linalg.norm(b.double().cpu()))


def images(*shape: int, seed: int = 0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 1).cuda()


def flags_on_and_off() -> None:
    """The whitening matrix with TF32, medium precision and autocast on, against all of them off."""
    x = images(32, 64, 16, 16)
    x = x + x.roll(1, 1)
    for group_size in (4, 16, 64):
        layer = DecorrelatedBatchNorm2d(64, group_size, momentum=1.0).cuda()
        matrices = []
        for flags in (False, True):
            torch.set_float32_matmul_precision("medium" if flags else "highest")
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=flags):
                one = copy.deepcopy(layer)
                one(x)
                matrices.append(one.whitening_matrix(one.running_covariance).detach())
        torch.set_float32_matmul_precision("highest")
        e = error(matrices[1], matrices[0])
        # Not bit for bit: with a flag on, products are taken in float64 and rounded.
        report(f"whitening matrix, d = {group_size}, TF32 + medium + autocast on against off", e <= 1e-5, f"{e:.1e}")


def gradients() -> None:
    """Gradients against the CPU in float64."""
    layers = {
        "DecorrelatedBatchNorm2d": lambda: DecorrelatedBatchNorm2d(16, 8),
        "DecorrelatedBatchNorm2d pca": lambda: DecorrelatedBatchNorm2d(16, 8, whitening="pca"),
        "PCADenoise2d": lambda: PCADenoise2d(16, rank=5),
        "CovariancePool2d": lambda: CovariancePool2d(16, reduced=None),
        "CovariancePool2d NewtonSchulz": lambda: CovariancePool2d(16, reduced=None, solver=sg.NewtonSchulz()),
    }
    for name, make in layers.items():
        grads = []
        for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
            x = images(8, 16, 6, 6).to(device, dtype).requires_grad_()
            y = make().to(device, dtype)(x)
            weight = torch.sin(torch.arange(y.numel(), device=device, dtype=dtype)).reshape(y.shape)
            grads.append(torch.autograd.grad((y * weight).sum(), x)[0])
        e = error(grads[1], grads[0])
        report(f"gradient of {name}", e <= 1e-4, f"{e:.1e}")
    content, style = images(2, 16, 9, 9).requires_grad_(), images(2, 16, 7, 7, seed=1).requires_grad_()
    WhitenColor2d(group_size=8).cuda()(content, style).square().sum().backward()
    report("gradient of WhitenColor2d", bool(content.grad.isfinite().all() and style.grad.isfinite().all()), "finite")
    x = torch.ones(4, 16, 5, 5, device="cuda", requires_grad=True)
    DecorrelatedBatchNorm2d(16).cuda()(x).pow(3).sum().backward()
    report("gradient at constant input", bool(x.grad.isfinite().all()), "finite")


def evaluation_follows_training() -> None:
    """The matrix that evaluation keeps is that of the running values, after every training step."""
    for rule in (sg.Exact(), sg.Taylor(9)):
        layer = DecorrelatedBatchNorm2d(16, 8, gradient=rule).cuda()
        worst = 0.0
        for step in range(3):
            layer.train()(images(8, 16, 6, 6, seed=step) * (1 + step))
            x = images(8, 16, 6, 6, seed=9)
            worst = max(worst, error(layer.eval()(x).detach(), copy.deepcopy(layer)(x).detach()))
        report(f"evaluation after training, {rule}", worst <= 1e-6, f"{worst:.1e}")


def step_with_scaler() -> None:
    """NOG and OLR with a fused optimizer and a GradScaler give the step that they give without."""
    weights = []
    for scaled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        NearestOrthogonalGradient(optimizer, [model[0].weight])
        OptimalLearningRate(optimizer, [model[0].weight])
        scaler = torch.amp.GradScaler("cuda", enabled=scaled)
        for step in range(3):
            optimizer.zero_grad()
            loss = model(images(4, 3, 8, 8, seed=step)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        weights.append(model[0].weight.detach())
    e = error(weights[1], weights[0])
    report("NOG + OLR, fused SGD with GradScaler against without", e <= 1e-5, f"{e:.1e}")


def compiled() -> None:
    x = images(8, 16, 6, 6)
    layer = DecorrelatedBatchNorm2d(16, 8).cuda()
    expected = copy.deepcopy(layer)(x)
    e = error(torch.compile(layer, fullgraph=True)(x).detach(), expected.detach())
    report("compile DecorrelatedBatchNorm2d", e <= 1e-5, f"{e:.1e}")


def over_nccl() -> None:
    """Statistics through nccl's collectives, in a group of one rank, against none: forward and backward."""
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        results = []
        for group in (None, torch.distributed.group.WORLD):
            x = images(8, 16, 6, 6).requires_grad_()
            y = DecorrelatedBatchNorm2d(16, 8, process_group=group).cuda()(x)
            results.append((y.detach(), torch.autograd.grad(y.pow(3).sum(), x)[0]))
        torch.distributed.destroy_process_group()
    worst = max(error(a, b) for a, b in zip(*results, strict=True))
    report("process_group over nccl, one rank, against none", worst <= 1e-5, f"{worst:.1e}")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("check_cuda_layers.py needs a CUDA device, and torch sees none here.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, spectralgrad {sg.__version__}")
    for check in (flags_on_and_off, gradients, evaluation_follows_training, step_with_scaler, compiled, over_nccl):
        check()
    print(f"{failures} missed")
    sys.exit(failures > 0)

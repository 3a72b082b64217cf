"""The sections on layers: whitening and a training step beside batch norm's, and covariance pooling."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import BatchNorm2d, Module
from torch.nn.functional import cross_entropy

import spectralgrad as sg
from spectralgrad_lab.models.resnet import Norm, resnet18

from . import peers
from .case import Case
from .cases import POOLING_GRADIENT
from .inputs import normal
from .measure import SETS, Build, Call, Effort, measure, timed_row
from .rows import Row, raised

BATCH_NORM = "BatchNorm2d"
CLASSES = 10
REFERENCES = 3  # images whose gradient is compared


def whitening_of(d: int) -> Norm:
    return lambda channels: sg.nn.DecorrelatedBatchNorm2d(channels, group_size=d)


def layer_step(layer: Callable[[Tensor], Tensor], leaves: list[Tensor], gradient: Tensor) -> Call:
    """Forward + backward to the input and to the layer's parameters."""
    parameters = list(layer.parameters()) if isinstance(layer, Module) else []
    return lambda i: torch.autograd.grad(layer(leaves[i]), [leaves[i], *parameters], gradient)


def time_whitening(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """DecorrelatedBatchNorm2d with groups of d, in training, beside BatchNorm2d, in the memory format that ``case.kind``
    names. kornia whitens all channels at once."""
    form = getattr(torch, case.kind or "contiguous_format")
    maps = [normal(*case.shape, device=device, seed=seed).contiguous(memory_format=form) for seed in range(SETS + 1)]
    leaves, gradient = [x.requires_grad_() for x in maps[:SETS]], maps[SETS]
    channels = case.shape[1]
    ours = whitening_of(case.d)(channels).to(device)
    optional: dict[str, Build] = {}
    kornia = peers.kornia_whitening(eps=1e-4) if case.d == channels else None
    if kornia is not None:
        optional[peers.KORNIA] = lambda: layer_step(kornia, leaves, gradient)
    baseline = (BATCH_NORM, layer_step(BatchNorm2d(channels).to(device), leaves, gradient))
    times = measure(layer_step(ours, leaves, gradient), baseline, optional, device, effort)
    row = timed_row(case, times, BATCH_NORM, at_least=False)
    return [replace(row, case=f"{case.label}, {case.kind}") if case.kind else row]


def _training_step(norm: Norm, case: Case, device: torch.device, images: list[Tensor], labels: Tensor) -> Call:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = resnet18(num_classes=CLASSES, width=case.width, norm=norm).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step(i: int) -> None:
        optimizer.zero_grad()
        cross_entropy(net(images[i]), labels).backward()
        optimizer.step()

    return step


def time_resnet(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Forward, loss, backward and SGD step of ResNet-18 with whitening after conv1, beside the same with batch norm."""
    images = [normal(*case.shape, device=device, seed=seed) for seed in range(SETS)]
    labels = torch.arange(case.shape[0], device=device) % CLASSES
    ours = _training_step(whitening_of(case.d), case, device, images, labels)
    baseline = (BATCH_NORM, _training_step(BatchNorm2d, case, device, images, labels))
    return [timed_row(case, measure(ours, baseline, {}, device, effort), BATCH_NORM, at_least=False)]


def _torch_pool(x: Tensor) -> Tensor:
    """The upper triangle of (X X^T / n)^(1/2) by torch alone, with a gradient that is wrong or NaN at zero eigenvalues."""
    X = x.flatten(-2)
    X = X - X.mean(-1, keepdim=True)
    w, V = torch.linalg.eigh(X @ X.mT / X.shape[-1])
    root = (V * w.clamp(min=0).sqrt().unsqueeze(-2)) @ V.mT
    rows, columns = torch.triu_indices(*root.shape[-2:], device=x.device)
    triangle: Tensor = root[..., rows, columns]
    return triangle


def pooling_gradient(x: Tensor, g: Tensor) -> Tensor:
    """The exact gradient at maps x (N, C, H, W) of <g, triangle of (X X^T / n)^(1/2)>, in float64.

    With X X^T / n = V diag(l) V^T and a = l^(1/2), the root's Loewner matrix is F_ij = 1/(a_i + a_j). Pairs of zeros have no
    part in it: what they would send to the covariance is orthogonal to every X. So dX = 2/n V (F * (V^T G V)) V^T X.

    >>> x = torch.tensor([[[[3.0, -3.0]]]])  # one channel: the root is |x|, of mean zero
    >>> pooling_gradient(x, torch.ones(1, 1)).flatten()
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    X = x.double().flatten(-2)
    X = X - X.mean(-1, keepdim=True)  # (N, C, n)
    C, n = X.shape[-2:]
    w, V = torch.linalg.eigh(X @ X.mT / n)
    a = torch.where(w > C * torch.finfo(w.dtype).eps * w[..., -1:], w, 0).sqrt()
    total = a.unsqueeze(-1) + a.unsqueeze(-2)
    F = torch.where(total > 0, 1 / total.clamp(min=torch.finfo(w.dtype).tiny), 0)
    G = torch.zeros(len(X), C, C, dtype=X.dtype, device=X.device)
    rows, columns = torch.triu_indices(C, C, device=X.device)
    G[:, rows, columns] = g.double()
    G = (G + G.mT) / 2
    gradient: Tensor = 2 / n * (V @ (F * (V.mT @ G @ V)) @ V.mT @ X)
    return (gradient - gradient.mean(-1, keepdim=True)).reshape(x.shape)


def time_pooling(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Milliseconds of forward + backward of CovariancePool2d, and the error of the gradient that reaches the features."""
    leaves = [normal(*case.shape, device=device, seed=seed).requires_grad_() for seed in range(SETS)]
    pool = sg.nn.CovariancePool2d(case.shape[1], reduced=None).to(device)
    g = normal(case.shape[0], pool.out_features, device=device, seed=SETS)
    times = measure(layer_step(pool, leaves, g), (peers.TORCH, layer_step(_torch_pool, leaves, g)), {}, device, effort)
    found, failed = {}, {}
    layers: dict[str, Callable[[Tensor], Tensor]] = {peers.OURS: pool, peers.TORCH: _torch_pool}
    for name, layer in layers.items():
        try:
            (gradient,) = torch.autograd.grad(layer(leaves[0]), leaves[0], g)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # cuSOLVER gives up on singular ones
            if name == peers.OURS:
                raise
            failed[name] = raised(error)
            continue
        exact = pooling_gradient(leaves[0].detach()[:REFERENCES].cpu(), g[:REFERENCES].cpu())
        size = torch.linalg.norm(exact.flatten(1), dim=1)
        distance = torch.linalg.norm((gradient[:REFERENCES].cpu().double() - exact).flatten(1), dim=1)
        found[name] = float((distance / size).max())
    timed = timed_row(case, times, peers.TORCH, at_least=False, kind="milliseconds")
    checked = Row(
        case.section,
        "error of the gradient",
        case.d,
        case.batch,
        "error",
        found[peers.OURS],
        target=POOLING_GRADIENT,
        at_least=False,
        baseline=peers.TORCH,
        errors=found,
        failed=failed,
    )
    return [timed, checked]

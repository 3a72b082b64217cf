"""PAMI Figure 2: what whitening does to points, to colours and to styles."""

import math

import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad_lab.drawing import encoded
from spectralgrad_lab.records.results import Computed, Curve, GalleryPicture, Printed, Scale
from spectralgrad_lab.style_network.studio import NAMES, Studio, studio
from spectralgrad_lab.style_network.workplace import Workplace
from spectralgrad_lab.transfer.pretrained import WeightsError
from spectralgrad_lab.transfer.transfer import transfer

from ..protocols.style import says
from ..spec import Spec

COUNT = {"smoke": 150, "short": 300, "paper": 300}
SPREAD = ((1.0, 0.85), (0.85, 1.0))  # covariance of the points: highly correlated, as the text says
MARKED = 12
NETWORK, DOMAIN = "SVD-WCT", "vangogh"
COLUMNS = ("A: content", "B: style", "A in the style of B")


def figure2(scale: Scale, place: Workplace) -> Computed:
    """Points, PCA- and ZCA-whitened; a photograph in the colours of a painting, and in its style."""
    points = correlated(COUNT[scale])
    S_pca, S_zca = whitening_matrices(points)
    clouds = {"(a) original": points, "(b) PCA-whitened": S_pca @ points, "(c) ZCA-whitened": S_zca @ points}
    turns = dict(zip(clouds, (torch.eye(2, dtype=points.dtype), S_pca, S_zca), strict=True))
    marked = points.sum(0).topk(MARKED).indices  # at one end of the cloud: they show where it is turned to
    curves = []
    for name, cloud in clouds.items():
        plain = torch.ones(cloud.shape[1], dtype=torch.bool).index_fill(0, marked, False)
        curves += [_curve(f"{name}: points", cloud[:, plain]), _curve(f"{name}: marked", cloud[:, marked])]
    rows: dict[str, tuple[str | None, ...]] = {name: _row(cloud, turns[name]) for name, cloud in clouds.items()}
    columns = ("variance of x", "variance of y", "covariance", "turned by")
    where = studio(scale, place)
    pictures, remarks = _pictures(where)
    return Computed(
        tables=(Printed(columns, rows, f"{points.shape[1]} points, whitened by our decomposition"),),
        curves=tuple(curves),
        x_label="x",
        y_label="y",
        remarks=(
            "S_PCA = L^(-1/2) V^T, with the signs of V that make it a rotation; S_ZCA = V L^(-1/2) V^T. «Turned by» is the "
            "angle of the orthogonal factor of S.",
            *remarks,
            *where.remarks(NETWORK),
        ),
        pictures=pictures,
    )


def correlated(count: int, seed: int = 0) -> Tensor:
    """Points (2, count), float64, of mean 0."""
    generator = torch.Generator().manual_seed(seed)
    root = sg.sqrtm(torch.tensor(SPREAD, dtype=torch.float64))
    points = root @ torch.randn(2, count, dtype=torch.float64, generator=generator)
    return points - points.mean(1, keepdim=True)


def whitening_matrices(points: Tensor) -> tuple[Tensor, Tensor]:
    """S_PCA and S_ZCA (2, 2) of points (2, n) of mean 0.

    >>> S_pca, S_zca = whitening_matrices(correlated(50))
    >>> bool(S_pca.det() > 0), bool(torch.allclose(S_zca, S_zca.T))
    (True, True)
    """
    covariance = points @ points.T / points.shape[1]
    w, V = sg.eigh(covariance)
    w, V = w.flip(0), V.flip(1)  # the largest first
    V = V * torch.where(V[0] < 0, -1.0, 1.0)
    V = V * torch.stack([torch.ones_like(w[0]), V.det().sign()])  # a rotation, not a reflection
    S_pca = w.rsqrt().unsqueeze(1) * V.T
    return S_pca, sg.inv_sqrtm(covariance)


def _row(cloud: Tensor, S: Tensor) -> tuple[str, ...]:
    covariance = cloud @ cloud.T / cloud.shape[1]
    R = sg.polar(S)
    angle = math.degrees(math.atan2(float(R[1, 0]), float(R[0, 0])))
    numbers = [float(covariance[0, 0]), float(covariance[1, 1]), float(covariance[0, 1])]
    return (*(f"{round(number, 4) + 0.0:.4f}" for number in numbers), f"{round(angle, 1) + 0.0:.1f}°")  # no «-0»


def _curve(label: str, cloud: Tensor) -> Curve:
    return Curve(label, tuple(cloud[0].tolist()), tuple(cloud[1].tolist()))


def _pictures(where: Studio) -> tuple[tuple[GalleryPicture, ...], tuple[str, ...]]:
    """(d) and (e): the first held-out photograph and painting; and remarks."""
    content, style = where.contents()[0], where.exemplars(DOMAIN)[0]
    made = {"(d) colour transfer": sg.nn.functional.color_transfer(content, style)}
    remarks = ["(d) `color_transfer`, on pixels."]
    if where.scale != "smoke":  # smoke needs no file
        try:
            made["(e) style transfer, VGG-19"] = transfer(
                content, style, strength=1.0, device=where.place.device, weights=where.place.encoder
            )
            remarks.append("(e) `transfer`, on the features of VGG-19; and the network of Fig. 8, SVD-WCT.")
        except WeightsError:  # its message names a path, which no record does
            remarks.append("(e) without VGG-19: its weights, or those of its decoders, are not installed.")
    painted = where.paint(NETWORK, DOMAIN, content[None], style[None])
    if painted is not None:
        made[f"(e) style transfer, {NETWORK}"] = painted[0]
    original = not where.are_drawn
    words = f"A photograph in the style of a painting from the domain {NAMES[DOMAIN]}"
    pictures = []
    for name, result in made.items():
        pictures += [
            GalleryPicture(name, COLUMNS[0], encoded(content), "A photograph", original),
            GalleryPicture(name, COLUMNS[1], encoded(style), f"A painting from the domain {NAMES[DOMAIN]}", original),
            GalleryPicture(name, COLUMNS[2], encoded(result), f"{words}: {name[4:]}"),
        ]
    return tuple(pictures), tuple(remarks)


SPEC = Spec(
    id="pami-fig2",
    paper="PAMI",
    shows="correlated points, PCA-whitened, ZCA-whitened; colour transfer; style transfer",
    kind="style",
    form="points",
    make=figure2,
    says=says(),
    claim="Both whitenings decorrelate; PCA rotates the points, ZCA keeps their orientation.",
)

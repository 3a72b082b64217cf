"""Contact sheets of a trained style network: what went in beside what came out, and the results alone."""

from pathlib import Path

import torch
from torch import Tensor

from spectralgrad_lab.data.artworks import Artworks
from spectralgrad_lab.drawing import as_image, laid_out
from spectralgrad_lab.files import replacing
from spectralgrad_lab.models.wct import PHOTO, StylePair

CONTENTS = 3  # held-out photographs on a sheet
GAP = 4  # pixels between pictures
SAMPLES, RESULTS = "samples.png", "results.png"


@torch.no_grad()
def write_sheets(folder: Path, pair: StylePair, artworks: Artworks, device: torch.device) -> None:
    """Paint held-out photographs after held-out exemplars of every domain.

    samples.png has content, exemplar and result in each row and holds originals; results.png holds results alone, one row a
    domain.

    Args:
        folder: where the two files go.
        pair: in evaluation mode, on ``device``.
        artworks: the held-out pictures are taken.
    """
    count = min(CONTENTS, len(artworks.test[PHOTO]))
    content = _pictures(artworks.test[PHOTO], count, device)
    rows, results = [], []
    for domain in pair.domains:
        exemplar = _pictures(artworks.test[domain], count, device)
        painted = pair.stylise(content, exemplar, domain).clamp(0, 1)
        rows.append(torch.stack([content, exemplar, painted], 1))  # (count, 3, 3, size, size)
        results.append(painted)
    _write_grid(folder / SAMPLES, torch.cat(rows))
    _write_grid(folder / RESULTS, torch.stack(results))


def _pictures(found: Tensor, count: int, device: torch.device) -> Tensor:
    """The first ``count`` pictures in [0, 1]; again from the start where there are fewer."""
    return found[torch.arange(count) % len(found)].to(device).float() / 255


def _write_grid(path: Path, pictures: Tensor) -> None:
    """Pictures (rows, columns, 3, H, W) in [0, 1] as one PNG file that is whole or not there."""
    rows, columns, _, height, width = pictures.shape
    placed = [
        ((j * (width + GAP), i * (height + GAP)), as_image(pictures[i, j].cpu()))
        for i in range(rows)
        for j in range(columns)
    ]
    sheet = laid_out((columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), placed)
    with replacing(path) as file:
        sheet.save(file, format="PNG")

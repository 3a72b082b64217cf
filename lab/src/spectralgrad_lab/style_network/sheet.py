"""Contact sheets of a trained style network: what went in beside what came out, and the results alone."""

from pathlib import Path

import torch
from torch import Tensor

from spectralgrad_lab.data.artworks import Artworks
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
    write_png(folder / SAMPLES, torch.cat(rows))
    write_png(folder / RESULTS, torch.stack(results))


def _pictures(found: Tensor, count: int, device: torch.device) -> Tensor:
    """The first ``count`` pictures in [0, 1]; again from the start where there are fewer."""
    return found[torch.arange(count) % len(found)].to(device).float() / 255


def write_png(path: Path, pictures: Tensor) -> None:
    """A grid of pictures (rows, columns, 3, H, W) in [0, 1] as one file that is whole or not there."""
    from PIL import Image  # not needed to train

    rows, columns, _, height, width = pictures.shape
    sheet = torch.ones(3, rows * (height + GAP) - GAP, columns * (width + GAP) - GAP)
    for i in range(rows):
        for j in range(columns):
            top, left = i * (height + GAP), j * (width + GAP)
            sheet[:, top : top + height, left : left + width] = pictures[i, j].float().cpu()
    image = Image.fromarray((sheet.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy())
    with replacing(path) as file:
        image.save(file, format="PNG")

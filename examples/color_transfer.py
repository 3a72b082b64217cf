"""Give a photograph the colours of another picture.

What one learns: `nn.functional.color_transfer` whitens the pixels of one picture and colours them like those of another.
It takes pictures of any size and type, and a strength.

python examples/color_transfer.py photo.jpg painting.jpg -o result.png --strength 0.8
python examples/color_transfer.py              # makes a synthetic pair and leaves all three pictures here
python examples/color_transfer.py --picture FILE     # and all three side by side

Reading and writing pictures needs Pillow: pip install pillow
"""

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch import Tensor

from spectralgrad.nn.functional import color_transfer


def read(path: Path) -> Tensor:
    """(3, H, W), uint8, upright; grey, palette and transparent pictures become RGB."""
    with Image.open(path) as picture:
        upright = ImageOps.exif_transpose(picture).convert("RGB")
    return (
        torch.frombuffer(bytearray(upright.tobytes()), dtype=torch.uint8)
        .view(upright.height, upright.width, 3)
        .movedim(-1, 0)
    )


def write(image: Tensor, path: Path) -> None:
    _, height, width = image.shape
    Image.frombytes("RGB", (width, height), image.movedim(0, -1).contiguous().numpy().tobytes()).save(path)


def synthetic_pair(height: int = 240, width: int = 320) -> tuple[Tensor, Tensor]:
    """Hills by day under a blue sky, and a sunset."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")

    def mix(weight: Tensor, first: list[float], second: list[float]) -> Tensor:  # colours (3, height, width)
        start, end = (torch.tensor(color).view(3, 1, 1) for color in (first, second))
        return torch.lerp(start.expand(3, height, width), end.expand(3, height, width), weight.expand(3, height, width))

    ridge = 0.6 + 0.08 * torch.sin(9 * x) + 0.04 * torch.sin(23 * x + 1)
    sky = mix(y / 0.7, [0.25, 0.45, 0.80], [0.80, 0.85, 0.88])
    hills = mix(0.5 + 0.5 * torch.cos(14 * x + 5 * y), [0.16, 0.32, 0.14], [0.55, 0.50, 0.25])
    glow = torch.exp(-((x - 0.5) ** 2 + (y - 0.7) ** 2) * 6)
    sunset = mix(glow, [0.22, 0.12, 0.45], [0.98, 0.60, 0.20]) * (1 - 0.5 * (y > 0.8) * y)
    pictures = (torch.where(y > ridge, hills, sky), sunset)
    photo, reference = ((255 * picture).round().to(torch.uint8) for picture in pictures)
    return photo, reference


def main(arguments: list[str] | None = None, picture: str | None = None) -> Path:
    parser = argparse.ArgumentParser(description="Give a photograph the colours of another picture.")
    parser.add_argument("photo", nargs="?", type=Path, help="the picture to change")
    parser.add_argument("reference", nargs="?", type=Path, help="the picture whose colours it gets")
    parser.add_argument("-o", "--output", type=Path, default=Path("color_transfer.png"))
    parser.add_argument("--strength", type=float, default=1.0, help="from 0, unchanged, to 1")
    parser.add_argument("--picture", default=picture, help="where to put all three side by side")
    options = parser.parse_args(arguments)
    if options.photo is not None and options.reference is None:
        parser.error("give both the photograph and the reference, or neither for a synthetic pair")
    if options.photo is None:
        photo, reference = synthetic_pair()
        write(photo, options.output.with_stem(options.output.stem + "_photo"))
        write(reference, options.output.with_stem(options.output.stem + "_reference"))
    else:
        photo, reference = read(options.photo), read(options.reference)
    result = color_transfer(photo, reference, strength=options.strength)
    write(result, options.output)
    for name, image in (("photo", photo), ("reference", reference), ("result", result)):
        red, green, blue = image.float().mean((1, 2)).tolist()
        print(f"{name:9} mean colour {red:5.1f} {green:5.1f} {blue:5.1f}")
    print(f"written to {options.output}")
    if options.picture:
        draw({"photograph": photo, "reference": reference, "result": result}, options.picture)
    return options.output


def draw(pictures: dict[str, Tensor], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.7), layout="constrained")
    for axes, (name, image) in zip(figure.subplots(1, 3), pictures.items(), strict=True):
        axes.imshow(image.movedim(0, -1).numpy())
        axes.set(title=name, xticks=[], yticks=[])
    figure.savefig(picture)


if __name__ == "__main__":
    main()

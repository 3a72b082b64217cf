"""Picture files in and out: colours, transparency, orientation and colour profile; a file is written whole or not at all."""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from spectralgrad.errors import OptionError, ShapeError, SpectralError
from spectralgrad_lab.data.decode import MOST_PIXELS, WIDE_MODES, known_formats, require_pixels, wide_grey
from spectralgrad_lab.drawing import as_image
from spectralgrad_lab.files import replacing

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SUFFIXES", "Picture", "PictureError", "read_picture", "require_suffix", "resized", "write_picture"]


class _Format(NamedTuple):
    """What can be written: Pillow's name, whether it holds transparency, the most pixels a side, and how it is saved."""

    name: str
    transparent: bool
    longest: float = math.inf
    options: Mapping[str, Any] = MappingProxyType({})


# JPEG without chroma subsampling, since halved chroma is what one sees first in a strongly coloured result.
_JPEG = _Format("JPEG", False, 65500, {"quality": 95, "subsampling": 0})
_TIFF = _Format("TIFF", True, options={"compression": "tiff_deflate"})
_FORMATS = {
    ".png": _Format("PNG", True),
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".webp": _Format("WEBP", True, 16383, {"quality": 95}),
    ".tif": _TIFF,
    ".tiff": _TIFF,
    ".bmp": _Format("BMP", False),
}
SUFFIXES = tuple(_FORMATS)
_RGB_PROFILE = b"RGB "  # bytes 16 to 20 of an ICC profile say whose numbers it explains
_NARROW = 255


class PictureError(SpectralError, OSError):
    """A picture file is missing, corrupt, too large, or cannot be written."""


@dataclass(frozen=True)
class Picture:
    """A picture as numbers.

    colors: (3, H, W), float32 in [0, 1]. alpha: (H, W), float32 in [0, 1], or None. profile: the ICC profile of the colours.
    exif: what the camera noted, less the orientation, which has been applied.
    """

    colors: Tensor
    alpha: Tensor | None = None
    profile: bytes | None = None
    exif: bytes | None = None

    @property
    def visible(self) -> Tensor | None:
        """(H, W), bool: what is not wholly transparent; None for all."""
        return None if self.alpha is None else self.alpha > 0


def read_picture(path: Path | str) -> Picture:
    """Read a picture: colour, greyscale, palette, CMYK, 8 or 16 bits, with or without transparency, turned as it was taken.

    Args:
        path: a PNG, JPEG, WebP, TIFF, BMP, GIF, PPM, TGA, JPEG 2000 or AVIF file. Of several frames the first is taken.

    Returns:
        Its colours and alpha as numbers in [0, 1], its colour profile and EXIF data.

    Raises:
        PictureError: no such file, a folder, no picture, a truncated one, or one with more than 67 million pixels, which
            would take more than 2 GiB: that is looked up in its header, before it is decoded.
    """
    path = Path(path)
    if path.is_dir():
        raise PictureError(f"`read_picture`: {path} must be a picture file, but is a folder. Name a file in it.")
    try:
        is_file = path.is_file()
    except (OSError, RuntimeError):  # a name too long, or links in a ring
        is_file = False
    if not is_file:
        what = "is a pipe or a device, and no file" if path.exists() else "does not exist"
        raise PictureError(f"`read_picture`: {path} {what}. Look for a misspelt name.")
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of many pixels: how many are too many, we say
            with Image.open(path, formats=known_formats()) as file:
                require_pixels(*file.size)
                file.load()
                return _as_numbers(ImageOps.exif_transpose(file))
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
        words = f"{str(error)[:200] or type(error).__name__}. If it is damaged, copy it again."
        raise PictureError(f"`read_picture`: {path} must be a whole picture file: {words}") from error


def _as_numbers(image: "Image") -> Picture:
    exif = image.getexif()
    profile = image.info.get("icc_profile")
    colors, alpha = _samples(image)
    return Picture(
        colors=colors,
        alpha=None if alpha is None or bool((alpha == 1).all()) else alpha,
        profile=profile if profile and profile[16:20] == _RGB_PROFILE else None,  # of grey or ink: not of what we write
        exif=exif.tobytes() if len(exif) else None,
    )


def _samples(image: "Image") -> tuple[Tensor, Tensor | None]:
    """Colours (3, H, W) and alpha (H, W) of an image of any mode."""
    if image.mode in WIDE_MODES:
        grey = wide_grey(image)
        return grey.expand(3, *grey.shape[-2:]).contiguous(), None
    if image.has_transparency_data or image.mode in ("La", "RGBa"):
        four = _raw(image.convert("RGBA")).permute(2, 0, 1)
        return four[:3].float().div_(_NARROW), four[3].float().div_(_NARROW)
    if image.mode == "CMYK":
        image = _from_inks(image)
    return _raw(image.convert("RGB")).permute(2, 0, 1).float().div_(_NARROW).contiguous(), None


def _raw(image: "Image") -> Tensor:
    import numpy as np

    return torch.from_numpy(np.array(image).astype(np.uint8, copy=False))


def _from_inks(image: "Image") -> "Image":
    """CMYK as sRGB, by its profile where it has one that works."""
    import io

    from PIL import ImageCms

    profile = image.info.get("icc_profile")
    if not profile:
        return image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        turned = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError):
        return image
    return turned or image


def resized(picture: Picture, longer: int | None) -> Picture:
    """The picture scaled so that its longer side has ``longer`` pixels; as it is for None.

    Raises:
        OptionError: it would have more pixels than are read.

    >>> resized(Picture(torch.rand(3, 20, 40)), 10).colors.shape
    torch.Size([3, 5, 10])
    """
    height, width = picture.colors.shape[-2:]
    if longer is None or longer == max(height, width):
        return picture
    scale = longer / max(height, width)
    shape = max(1, round(height * scale)), max(1, round(width * scale))
    if math.prod(shape) > MOST_PIXELS:
        raise OptionError(
            f"`transfer`: size {longer} makes {math.prod(shape) / 1e6:.0f} million pixels of {height} x {width}; a picture "
            f"has at most {MOST_PIXELS / 1e6:.0f} million. Take a smaller one."
        )
    if picture.alpha is None:
        return replace(picture, colors=_interpolated(picture.colors, shape))
    # Colours of transparent pixels mean nothing: they must not bleed into their neighbours.
    alpha = _interpolated(picture.alpha[None], shape)
    colors = _interpolated(picture.colors * picture.alpha, shape) / torch.where(alpha > 0, alpha, 1)
    return replace(picture, colors=colors.clamp(0, 1), alpha=alpha[0])


def _interpolated(x: Tensor, shape: tuple[int, int]) -> Tensor:
    small = torch.nn.functional.interpolate(x[None], shape, mode="bicubic", antialias=True, align_corners=False)
    return small[0].clamp_(0, 1)


def require_suffix(who: str, path: Path, alpha: bool = False, longer: int = 0) -> None:
    """Raise unless a picture can be written under this name: with its transparency where it has one, and its longer side.

    >>> require_suffix("transfer", Path("a.gif"))
    Traceback (most recent call last):
    spectralgrad.errors.OptionError: `transfer`: a.gif must end in .png, .jpg, .jpeg, .webp, .tif, .tiff or .bmp.
    """
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise OptionError(f"`{who}`: {path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}.")
    if alpha and not _FORMATS[suffix].transparent:
        raise OptionError(f"`{who}`: {path}: {suffix} holds no transparency, and the content has some. Take .png or .webp.")
    longest = _FORMATS[suffix].longest
    if longer > longest:
        raise OptionError(f"`{who}`: {path}: {suffix} holds {longest} pixels a side, the result has {longer}. Take .png.")


def write_picture(path: Path | str, picture: Picture | Tensor) -> Path:
    """Write a picture as the suffix says, 8 bits a channel; values are cut to [0, 1].

    The file is written beside its name and then renamed: whatever happens, there is the whole picture or what was before.

    Args:
        path: .png, .jpg, .jpeg, .webp, .tif, .tiff or .bmp.
        picture: colours (3, H, W) in [0, 1], or a picture with alpha, profile and EXIF data.

    Returns:
        The path.

    Raises:
        OptionError: a suffix that is none of those, or one that does not hold the picture's transparency or its size.
        ShapeError: no (3, H, W).
        PictureError: a folder of that name, or a place that cannot be written to.
    """
    path = Path(path)
    picture = picture if isinstance(picture, Picture) else Picture(picture)
    require_suffix("write_picture", path, picture.alpha is not None, max(picture.colors.shape[-2:], default=0))
    if picture.colors.ndim != 3 or picture.colors.shape[0] != 3 or 0 in picture.colors.shape:
        raise ShapeError(f"`write_picture`: the picture must have shape (3, H, W), got {tuple(picture.colors.shape)}.")
    options = {"icc_profile": picture.profile} if picture.profile else {}
    if picture.exif and path.suffix.lower() != ".bmp":
        options["exif"] = picture.exif
    layers = picture.colors if picture.alpha is None else torch.cat([picture.colors, picture.alpha[None]])
    image = as_image(layers.cpu())
    return write_image(path, image, options)


def write_image(path: Path, image: "Image", options: dict[str, Any] | None = None) -> Path:
    """Write an image of Pillow's as the suffix says, whole or not at all."""
    require_suffix("write_picture", path)
    form = _FORMATS[path.suffix.lower()]
    with _replacing(path) as file:
        image.save(file, format=form.name, **form.options, **(options or {}))
    return path


@contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    """A file to write that takes the place of ``path`` when the block ends well, and leaves nothing when it does not."""
    if path.is_dir():
        raise PictureError(f"`write_picture`: {path} must be the name of a file, but is a folder. Name a file in it.")
    try:
        path = path.resolve(strict=False)  # through links: the file is replaced, not the link
        with replacing(path) as file:
            yield file
    except (OSError, RuntimeError, ValueError) as error:  # links in a ring, before Python 3.13; more than a format holds
        reason = getattr(error, "strerror", None) or error
        raise PictureError(f"`write_picture`: {path} cannot be written: {reason}. Nothing was changed.") from error

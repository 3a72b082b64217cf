"""Pictures that a program drew, in the styles of others that it drew: what may be shown to everybody."""

from collections.abc import Mapping

from torch import Tensor

from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.drawing import encoded
from spectralgrad_lab.records.results import GalleryPicture, Scale
from spectralgrad_lab.style_network.studio import METHODS, NAMES, STYLES, gallery_of, studio
from spectralgrad_lab.style_network.workplace import Workplace
from spectralgrad_lab.transfer.deep import Networks, load_networks
from spectralgrad_lab.transfer.options import TransferOptions
from spectralgrad_lab.transfer.transfer import Stylist

COUNT = 20  # drawn pictures of each kind, of which three are held out
TRANSFER_SIZE, NETWORK_SIZE = 448, 256  # pixels a side
STRENGTHS = (0.6, 1.0)


def by_transfer(networks: Mapping[str, Networks] | None = None, size: int = TRANSFER_SIZE) -> tuple[GalleryPicture, ...]:
    """Drawn photographs in drawn styles: colours alone, and deep transfer at two strengths.

    Args:
        networks: in the place of those that come with the package.
        size: pixels a side.

    Raises:
        WeightsError: the weights of deep transfer are not there.
    """
    networks = networks or load_networks(TransferOptions().depth, None, TransferOptions().on)
    held_out = embedded_artworks(size, COUNT).test
    made = []
    for i, domain in enumerate(STYLES):
        content, style = held_out["photo"][i].float() / 255, held_out[domain][i % len(held_out[domain])].float() / 255
        row = {
            "content": content,
            "style": style,
            "colours alone": _painted(content, style, TransferOptions(level="pixels")),
        }
        for strength in STRENGTHS:
            options = TransferOptions(strength=strength)
            row[f"deep, strength {strength:g}"] = _painted(content, style, options, networks)
        name = f"after {NAMES[domain]}"
        made += [GalleryPicture(name, column, encoded(picture), f"{column} {name}") for column, picture in row.items()]
    return tuple(made)


def by_networks(scale: Scale, place: Workplace) -> tuple[GalleryPicture, ...]:
    """The trained style networks on drawn photographs and drawn styles."""
    pictures = embedded_artworks(NETWORK_SIZE, COUNT)
    rows = [(domain, i) for i, domain in enumerate(STYLES)]
    return gallery_of(studio(scale, place), tuple(METHODS), pictures, rows, original=False)


def _painted(
    content: Tensor, style: Tensor, options: TransferOptions, networks: Mapping[str, Networks] | None = None
) -> Tensor:
    return Stylist(style, options, networks=networks)(content).colors.clamp(0, 1)

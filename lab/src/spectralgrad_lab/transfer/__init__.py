"""Style transfer for people with two pictures, and how its results are measured."""

from .options import TransferOptions
from .pictures import Picture, PictureError, read_picture, write_picture
from .transfer import Stylist, transfer

__all__ = ["Picture", "PictureError", "Stylist", "TransferOptions", "read_picture", "transfer", "write_picture"]

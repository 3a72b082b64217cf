"""The data sets of the papers, as tensors that a device can hold or decoded on the way, in augmented batches."""

from .batches import Epoch
from .dataset import DataError, Dataset
from .load import NAMES, load, open_source
from .source import Source

__all__ = ["NAMES", "DataError", "Dataset", "Epoch", "Source", "load", "open_source"]

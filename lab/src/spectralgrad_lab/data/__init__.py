"""The data sets of the papers, as tensors that a device can hold, and their augmentation in batches."""

from .batches import Epoch
from .dataset import DataError, Dataset
from .load import NAMES, load

__all__ = ["NAMES", "DataError", "Dataset", "Epoch", "load"]

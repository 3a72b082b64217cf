"""torch's own decompositions with gradients that never blow up, in code that one may not edit."""

from .mode import drop_in

__all__ = ["drop_in"]

"""What the spectra, gradients and solvers inside a model do while it trains.

`monitor.py` runs the others: `layers.py` finds what can be watched, `tap.py` watches one layer, `spectrum.py` and
`failures.py` make the entries of a `record.py`, and `writers.py` puts records into a file or a writer of scalars.
`trace.py` lists the decompositions of any model, and `places.py` says where they were called.
"""

from .monitor import ConditionMonitor
from .trace import trace

__all__ = ["ConditionMonitor", "trace"]

"""Eigenvalues -> coefficients K."""

from .analytic import Analytic
from .base import Rule
from .clip import Clip
from .exact import Exact
from .lorentzian import Lorentzian
from .power_iteration import PowerIteration
from .taylor import Taylor

__all__ = ["Analytic", "Clip", "Exact", "Lorentzian", "PowerIteration", "Rule", "Taylor"]

"""Eigenvalues -> coefficients K, one rule a file."""

from .analytic import Analytic
from .base import Rule
from .clip import Clip
from .exact import Exact
from .lorentzian import Lorentzian
from .taylor import Taylor

__all__ = ["Analytic", "Clip", "Exact", "Lorentzian", "Rule", "Taylor"]

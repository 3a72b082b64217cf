"""The list of all targets; those that the library does not have yet are left out."""

from operator import attrgetter

import spectralgrad

from .clouds import CLOUDS
from .definite import DEFINITE
from .functions import FUNCTIONS
from .samples import SAMPLES
from .singular import SINGULAR
from .targets import Eigh, Factors, Polar, Projector, Svd, Target

_BY_SVD = "U, S, Vh = sg.svd(X{})\nY = U @ Vh"
_ALL: list[Target] = [
    Eigh("eigh"),
    Eigh("eigh(Exact)", arguments=", gradient=sg.Exact()", rule="Exact"),
    Eigh("eigh(Lapack)", arguments=", solver=sg.Lapack()"),
    Eigh("eigh(Jacobi)", arguments=", solver=sg.Jacobi()"),
    Eigh("eigh(SVD)", arguments=", solver=sg.SVD()"),
    Svd("svd"),
    Svd("svd(Exact)", arguments=", gradient=sg.Exact()", rule="Exact"),
    Factors("svd: U, S, Vh"),
    Factors("svd(Exact): U, S, Vh", arguments=", gradient=sg.Exact()"),
    Polar("svd: U @ Vh", lines=_BY_SVD.format(""), rule="Lorentzian"),
    Polar("svd(Exact): U @ Vh", lines=_BY_SVD.format(", gradient=sg.Exact()"), rule="Exact"),
    Polar("polar"),
    Projector("projector"),
    *FUNCTIONS,
    *SINGULAR,
    *CLOUDS,
    *DEFINITE,
    *SAMPLES,
]


def function_of(target: Target) -> str:
    """The name of the library's function that a target is about."""
    return target.name.split("(")[0].split(":")[0]


def _exists(target: Target) -> bool:
    try:
        attrgetter(function_of(target))(spectralgrad)
    except AttributeError:
        return False
    return True


TARGETS = [target for target in _ALL if _exists(target)]


def by_name(name: str) -> Target:
    return next(target for target in TARGETS if target.name == name)

"""Gradients through eigendecompositions that never blow up.

Public is what `__all__` names here and in `nn`, `nn.functional`, `orthogonal`, `spd`, `diagnostics` and `errors`. Every
other module is private and may change without notice.
"""

from spectralgrad import diagnostics, errors, nn, orthogonal, spd
from spectralgrad.align import kabsch, procrustes, umeyama
from spectralgrad.counters import counts, reset_counts
from spectralgrad.distances import cca_loss, frechet_distance, frechet_distance_of
from spectralgrad.dropin import drop_in
from spectralgrad.linalg.covariance import Moments, covariance, merge_moments, moments
from spectralgrad.linalg.eigh import eigh, eigvalsh
from spectralgrad.linalg.functions import expm, inv_root, inv_sqrtm, logm, sqrtm
from spectralgrad.linalg.generalized import generalized_eigh
from spectralgrad.linalg.logdet import logdet
from spectralgrad.linalg.lstsq import lstsq, nullspace
from spectralgrad.linalg.norms import nuclear_norm, schatten_norm
from spectralgrad.linalg.pinv import pinv
from spectralgrad.linalg.polar import polar
from spectralgrad.linalg.power import PowerDeflation, PowerIteration
from spectralgrad.linalg.powm import powm
from spectralgrad.linalg.products import NewtonSchulz
from spectralgrad.linalg.projector import projector
from spectralgrad.linalg.rules import Analytic, Clip, Exact, Lorentzian, Rule, Taylor
from spectralgrad.linalg.singular_map import singular_map
from spectralgrad.linalg.solvers import SVD, Auto, Jacobi, Lapack, Solver
from spectralgrad.linalg.spectral_map import spectral_map
from spectralgrad.linalg.svd import svd, svdvals
from spectralgrad.linalg.topk.eigsh import eigsh
from spectralgrad.linalg.topk.maps import LinearMap
from spectralgrad.linalg.topk.svds import svds
from spectralgrad.validation import checks

__version__ = "0.1.0"

__all__ = [
    "SVD",
    "Analytic",
    "Auto",
    "Clip",
    "Exact",
    "Jacobi",
    "Lapack",
    "LinearMap",
    "Lorentzian",
    "Moments",
    "NewtonSchulz",
    "PowerDeflation",
    "PowerIteration",
    "Rule",
    "Solver",
    "Taylor",
    "cca_loss",
    "checks",
    "counts",
    "covariance",
    "diagnostics",
    "drop_in",
    "eigh",
    "eigsh",
    "eigvalsh",
    "errors",
    "expm",
    "frechet_distance",
    "frechet_distance_of",
    "generalized_eigh",
    "inv_root",
    "inv_sqrtm",
    "kabsch",
    "logdet",
    "logm",
    "lstsq",
    "merge_moments",
    "moments",
    "nn",
    "nuclear_norm",
    "nullspace",
    "orthogonal",
    "pinv",
    "polar",
    "powm",
    "procrustes",
    "projector",
    "reset_counts",
    "schatten_norm",
    "singular_map",
    "spd",
    "spectral_map",
    "sqrtm",
    "svd",
    "svds",
    "svdvals",
    "umeyama",
]

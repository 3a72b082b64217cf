"""The words of the tables, explained in a line each."""

from .markup import Markup, element

WORDS = {
    "d": "channels that are whitened together: 64 channels at d = 16 are four groups, each with a 16 x 16 covariance.",
    "BN": "batch norm: each channel by itself, no decomposition.",
    "ZCA, PCA": "decorrelated batch norm: the channels of a group become uncorrelated, which takes an eigendecomposition.",
    "PCA denoising": "only the leading eigenvectors of the covariance are kept, by energy or by number.",
    "GCP": "global covariance pooling: the square root of the features' covariance in the place of their mean.",
    "SVD": "the analytic gradient of the eigenvectors, with coefficients 1/(l_i - l_j): not finite where two eigenvalues "
    "tie. In ECCV22's tables «SVD» has a stable gradient, Taylor's.",
    "PI": "power iteration both forward and backward.",
    "SVD-PI": "SVD forward, the gradient of power iteration backward (NIPS19).",
    "Clip": "the analytic gradient, its coefficients cut off at a threshold.",
    "Taylor": "1/(l_i - l_j) as a sum of K + 1 powers, which is bounded (PAMI).",
    "Exact": "ours: the exact gradient of the whole whitening, finite at ties too.",
    "Newton-Schulz": "the inverse square root by matrix products alone.",
    "SN, OL, OW, NOG, OLR": "ECCV22's treatments of the weight before the layer: spectral norm, orthogonal loss, orthogonal "
    "weight, nearest orthogonal gradient, optimal learning rate.",
    "eps, K": "eps is added to the covariance's diagonal; K is the degree of Taylor, or the number of power iterations.",
    "finite": "trainings whose loss, gradient and weights stayed finite to the end.",
    "converged": "finite, and training and test error of the last epoch at most half of guessing's. This is a success.",
    "min, mean": "over the seeds that succeeded, after the last epoch; ± is the sample standard deviation.",
    "best epoch": "mean over the seeds of each training's best epoch, of those that were evaluated.",
    "smoke, short, paper": "how much of the protocol is run: that the code works, minutes on a GPU, or the printed one, but "
    "that images which fill no batch are left out and convolutions after the first are in bfloat16.",
}


def legend() -> Markup:
    """The words, as a list that can be folded away."""
    pairs = [part for word, text in WORDS.items() for part in (element("dt", word), element("dd", text))]
    return element("details", element("summary", "What the words mean"), element("dl", *pairs), id="legend", open=True)

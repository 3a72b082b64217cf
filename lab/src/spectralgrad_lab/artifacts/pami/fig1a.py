from .. import computed
from ..spec import Spec

SPEC = Spec(
    id="pami-fig1a",
    paper="PAMI",
    shows="probability that two eigenvalues are closer than 2^-10..2^-14, d = 6..600",
    kind="computed",
    form="probability",
    compute=computed.close_eigenvalues,
    says={
        "smoke": "2,000 matrices a dimension, d up to 150: probabilities below 1/2,000 come out as 0.",
        "short": "5,000 matrices a dimension, d up to 300: probabilities below 1/5,000 come out as 0.",
    },
    claim="At dimension 150 there is more than a 0.1 % chance that two eigenvalues are within 2^-10 of each other.",
)

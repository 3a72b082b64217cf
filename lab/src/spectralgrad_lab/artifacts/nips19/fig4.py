from ..protocols.denoising import METHODS_SAYS, by_method
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="nips19-fig4",
    paper="NIPS19",
    shows="BN, PCA(PI), PCA(SVD), PCA(SVD-PI): training loss by epoch",
    kind="training",
    form="loss",
    entries=lambda scale: by_method(scale, 0.99, 1),
    says=says(
        short=METHODS_SAYS,
        paper=f"The paper draws BN, PI and SVD-PI; PCA(SVD) is shown as far as it comes. {METHODS_SAYS}",
    ),
    claim="The loss falls smoothly for SVD-PI and batch norm, and is unstable for PI.",
)

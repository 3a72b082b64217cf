from ..protocols.style import later, says
from ..spec import Spec

SPEC = Spec(
    id="pami-fig2",
    paper="PAMI",
    shows="correlated points, PCA-whitened, ZCA-whitened; colour transfer; style transfer",
    kind="style",
    form="points",
    make=later("whitening_figure", "figure2"),
    says=says(),
    claim="Both whitenings decorrelate; PCA rotates the points, ZCA keeps their orientation.",
)

from ..protocols.hyperparameters import settings
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="pami-fig5",
    paper="PAMI",
    shows="(eps, K) = (1e-4, 19), (1e-2, 19), (1e-2, 9): training and test error by epoch, d = 64",
    kind="training",
    form="error",
    entries=lambda scale: settings(scale, 1),
    says=says(paper="The first of Table 3's eight trials each."),
    claim="With K = 19 the test error is unstable; with K = 9 and eps = 1e-2 it follows the training error.",
)

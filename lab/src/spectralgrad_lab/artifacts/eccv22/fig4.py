from ..protocols.conditioning import PAPER_SAYS, RANGE, SHORT_SAYS, SMOKE_SAYS, TABLE3, decorrelation
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="eccv22-fig4",
    paper="ECCV22",
    shows="condition number over training: OLR and hybrid treatments",
    kind="training",
    form="condition",
    entries=lambda scale: decorrelation(scale, TABLE3, 1),
    says=says(smoke=f"{SMOKE_SAYS} {RANGE}", short=f"{SHORT_SAYS} {RANGE}", paper=f"{PAPER_SAYS} {RANGE}"),
    claim="OLR reduces the condition number to 1e4.",
)

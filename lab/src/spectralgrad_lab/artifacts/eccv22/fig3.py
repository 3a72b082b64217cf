from ..protocols.conditioning import PAPER_SAYS, RANGE, SHORT_SAYS, SMOKE_SAYS, TABLE2, decorrelation
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="eccv22-fig3",
    paper="ECCV22",
    shows="condition number over training: NOG and weight treatments",
    kind="training",
    form="condition",
    entries=lambda scale: decorrelation(scale, TABLE2, 1),
    says=says(smoke=f"{SMOKE_SAYS} {RANGE}", short=f"{SHORT_SAYS} {RANGE}", paper=f"{PAPER_SAYS} {RANGE}"),
    claim="NOG improves the condition number from 1e12 to 1e6.",
)

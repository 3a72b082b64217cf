from ..protocols.conditioning import PAPER_SAYS, RANGE, SHORT_SAYS, SKEW_SAYS, SMOKE_SAYS, TABLE1, decorrelation
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="eccv22-fig2",
    paper="ECCV22",
    shows="condition number over training: weight treatments",
    kind="training",
    form="condition",
    entries=lambda scale: decorrelation(scale, TABLE1, 1),
    says=says(
        smoke=f"{SMOKE_SAYS} {RANGE}", short=f"{SHORT_SAYS} {RANGE} {SKEW_SAYS}", paper=f"{PAPER_SAYS} {RANGE} {SKEW_SAYS}"
    ),
    claim="All weight treatments improve the conditioning: SN to about 1e5, OW to about 1e3.",
)

from ..protocols.conditioning import PAPER_SAYS, SHORT_SAYS, SINGULAR, SMOKE_SAYS, TABLE1, decorrelation
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="eccv22-fig2",
    paper="ECCV22",
    shows="condition number over training: weight treatments",
    kind="training",
    form="condition",
    entries=lambda scale: decorrelation(scale, TABLE1, 1),
    says=says(smoke=SMOKE_SAYS, short=f"{SHORT_SAYS} {SINGULAR}", paper=f"{PAPER_SAYS} {SINGULAR}"),
    claim="All weight treatments improve the conditioning: SN to about 1e5, OW to about 1e3.",
)

from .. import style
from ..protocols.style import says
from ..spec import Spec

SPEC = Spec(
    id="pami-fig10",
    paper="PAMI",
    shows="pictures: SVD-WCT, GD-WCT, PI-WCT and Clip-WCT",
    kind="style",
    form="pictures",
    make=style.figure10,
    says=says(),
    claim="Clip-WCT and GD-WCT cannot remove the original style completely, in particular for Monet and Cezanne.",
)

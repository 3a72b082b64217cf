from .. import style
from ..protocols.style import says
from ..spec import Spec

SPEC = Spec(
    id="pami-fig9",
    paper="PAMI",
    shows="pictures: SVD-WCT against GD-WCT",
    kind="style",
    form="pictures",
    make=style.figure9,
    says=says(),
    claim="SVD-WCT gives sharper details, and replaces the style completely.",
)

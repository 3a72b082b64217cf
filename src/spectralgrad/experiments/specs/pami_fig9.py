from ..spec import Spec
from ._style import later, says

SPEC = Spec(
    id="pami-fig9",
    paper="PAMI",
    shows="pictures: SVD-WCT against GD-WCT",
    kind="style",
    form="pictures",
    make=later("style_artifacts", "figure9"),
    says=says(),
    claim="SVD-WCT gives sharper details, and replaces the style completely.",
)

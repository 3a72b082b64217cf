from ..spec import Spec

SPEC = Spec(
    id="pami-fig9",
    paper="PAMI",
    shows="pictures: SVD-WCT against GD-WCT",
    kind="style",
    claim="SVD-WCT gives sharper details, and replaces the style completely.",
)

from .. import computed
from ..spec import Spec

SPEC = Spec(
    id="nips19-fig1",
    paper="NIPS19",
    shows="surface and contour of ratio^k over ratio and k (also DRAFT F1, POSTER)",
    kind="computed",
    form="contour",
    compute=lambda _: computed.power_surface(),
    claim="The remainder (l_i/l_1)^k is near 0 but for ratios close to 1, where k must be large.",
)

from spectralgrad_lab.records.results import Printed

from .. import computed
from ..spec import Spec

PRINTED = Printed(
    ("smallest ρ", "q2", "q3"),
    {
        "(a) q2 up to 1": ("-44.99°", "q3 + 1e-10", "1 - 1e-6"),
        "(b) q2 up to 0.5": ("-5.71°", "0.5", "0.5"),
        "(c) q2 up to 0.01": ("-0.06°", "0.01", "0.01"),
    },
    "PAMI 7.1, eqs. 43, 50 and 54: the largest negative residuals of Fig. 11 and where they are.",
    (
        "Eq. 53 prints 1 - 0.1^10 for 1 - 0.01^10; to two digits the angle is the same.",
        "Eq. 44 prints l_1 - l_2 for l_1 - l_3.",
    ),
)

SPEC = Spec(
    id="pami-fig11",
    paper="PAMI",
    shows="angle residual rho(q2, q3) for three cases",
    kind="computed",
    form="contour",
    printed=(PRINTED,),
    compute=lambda _: computed.angle_residuals(PRINTED),
    claim="The more the first eigenvalue dominates, the closer the Taylor expansion keeps the direction: 45°, 5.71°, 0.06°.",
)

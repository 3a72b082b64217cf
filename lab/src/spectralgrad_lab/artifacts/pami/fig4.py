from spectralgrad_lab.records.results import Printed

from .. import computed
from ..spec import Spec

PRINTED = Printed(
    ("K", "x", "discarded"),
    {"A": ("9", "", "5%"), "B": ("9", "0.85", "20%"), "C": ("19", "0.85", "5%")},
    "PAMI 4.1: the points of Fig. 4. Empty: not printed.",
    (
        "C is not on the 5 % curve: x = 0.85 and K = 19 discard 0.85^20 = 3.9 %; the curve is at x = 0.861. With the "
        "exponent K in the place of K + 1 it would be 4.6 %.",
    ),
)

SPEC = Spec(
    id="pami-fig4",
    paper="PAMI",
    shows="x^(K+1): surface, 5 % and 20 % contours, points A, B, C",
    kind="computed",
    form="contour",
    printed=(PRINTED,),
    compute=lambda _: computed.remainder_surface(PRINTED),
    claim="At x = 0.85 degree 9 discards 20 % of the gradient and degree 19 only 5 %, but 9 is the more stable.",
)

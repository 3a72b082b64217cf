"""Artifacts that need no data: the papers' own numbers, computed again, and compared with what they print."""

import math
from collections.abc import Collection, Sequence
from fractions import Fraction

import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad_lab.records.results import Computed, Curve, Printed, Scale, Surface

RATIOS = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.85", "0.9", "0.95", "0.99", "0.995", "0.999")
REMAINDER = Fraction(5, 100)  # NIPS19 eq. 14: what counts as zero
DEGREE = 9
THRESHOLD = 100.0
EXAMPLE = (0.02, 0.01, 0.01)  # PAMI 7.2.1: eigenvalues with a tie
Where = tuple[str, str]  # row and column of a cell


def matches(printed: str, value: float) -> bool:
    """Whether a number, rounded to as many digits as are printed, is what is printed.

    >>> matches("5.71°", 5.7051), matches("20%", 19.69), matches("-44.99°", -44.97), matches("∞", math.inf)
    (True, True, False, True)
    """
    text = printed.strip("°%").replace("∞", "inf")
    return f"{value:.{len(text.partition('.')[2])}f}" == text


def agreement(printed: Printed, values: dict[Where, float], misprints: Collection[Where] = ()) -> bool:
    """Whether every legible number of a table is reproduced, and every marked misprint is one."""
    texts = {
        (row, column): text
        for row, cells in printed.rows.items()
        for column, text in zip(printed.columns, cells, strict=True)
        if text
    }
    compared = [
        matches(texts[where], value) is (where not in misprints) for where, value in values.items() if where in texts
    ]
    return bool(compared) and all(compared)


def table(columns: Sequence[str], values: dict[Where, float], caption: str, form: str = "{:.4g}") -> Printed:
    """Our numbers as a table; every row has every column."""
    rows = list(dict.fromkeys(row for row, _ in values))
    shown = {where: form.format(value).replace("inf", "∞") for where, value in values.items()}
    return Printed(tuple(columns), {row: tuple(shown[row, column] for column in columns) for row in rows}, caption)


# NIPS19 Table 1 and Figure 1


def smallest_power(ratio: str, bound: Fraction = REMAINDER) -> int:
    """The smallest k with ratio^k <= bound, in exact arithmetic.

    >>> smallest_power("0.85"), smallest_power("0.999")
    (19, 2995)
    """
    q = Fraction(ratio)
    k = max(1, math.ceil(math.log(bound) / math.log(q)) - 1)  # at most the answer, whatever the logarithms round
    while q**k > bound:
        k += 1
    assert k == 1 or q ** (k - 1) > bound
    return k


def iterations_needed(printed: Sequence[Printed]) -> Computed:
    """NIPS19 Table 1, and DRAFT's: the smallest k with ratio^k <= 0.05."""
    values = {("k", ratio): float(smallest_power(ratio)) for ratio in RATIOS}
    ours = table(RATIOS, values, "Smallest k with ratio^k <= 0.05, in exact arithmetic", "{:.0f}")
    return Computed(
        tables=(ours,),
        agrees=all(agreement(each, values) for each in printed),
        remarks=("The seven values that the text of NIPS19 lost are 2, 2, 3, 4, 5, 6, 9.",),
    )


def power_surface() -> Computed:
    """NIPS19 Figure 1: ratio^k, whose 5 % contour is Table 1."""
    ratios, powers = torch.linspace(0, 1, 101, dtype=torch.float64), torch.arange(1, 61)
    z = ratios ** powers.unsqueeze(-1)  # (k, ratio)
    bound = float(REMAINDER)
    crossed = [float(r) ** smallest_power(r) <= bound < float(r) ** (smallest_power(r) - 1) for r in RATIOS]
    quoted = {"0.84": 0.84**19, "0.85": 0.85**19, "0.86": 0.86**19}
    return Computed(
        tables=(table(("k = 19",), {(r, "k = 19"): v for r, v in quoted.items()}, "ratio^19, for ratios that 2.4 quotes"),),
        surfaces=(_surface(ratios, powers, z, (bound,), (("K = 19", 0.85, 19.0),), "ratio l_i / l_1", "k"),),
        agrees=all(crossed),
        remarks=(
            "The 5 % contour passes through every cell of Table 1: k of the table is at or below it, k - 1 above.",
            "Section 2.4 takes K = 19 for mean ratios in [0.84, 0.86]; at 0.86 it leaves 5.7 %, a little above the 5 %.",
            "The ranges of the axes are ours: the text does not give the figure's.",
        ),
    )


# PAMI Figures 3, 4, 11 and equations 60 and 61


def coefficients(rule: sg.Rule, eigenvalues: Tensor) -> Tensor:
    """K (*B, n, n) as PAMI writes it, K_ij ~ 1/(l_i - l_j): the negative of ours."""
    return -rule.coefficients(eigenvalues) + 0.0  # + 0.0: the diagonal is 0, not -0


def column_angle(rule: sg.Rule, eigenvalues: Tensor) -> Tensor:
    """The angle (*B), in degrees, of K's last column (K_13, K_23) to the x axis, for eigenvalues (*B, 3), descending."""
    K = coefficients(rule, eigenvalues)
    return torch.rad2deg(torch.atan2(K[..., 1, 2], K[..., 0, 2]))


def residual(rule: sg.Rule, eigenvalues: Tensor) -> Tensor:
    """PAMI eq. 41: how far a rule turns the column, in degrees, beside the bare 1/gap."""
    return column_angle(rule, eigenvalues) - column_angle(sg.Analytic(), eigenvalues)


def directions(printed: Printed) -> Computed:
    """PAMI Figure 3, with the numbers of 7.2.1: the column's true direction, clipped, and by Taylor."""
    eigenvalues = torch.tensor(EXAMPLE, dtype=torch.float64)
    rules = {"original": sg.Analytic(), "clipped at 100": sg.Clip(THRESHOLD), "Taylor, K = 9": sg.Taylor(DEGREE)}
    angles = {name: float(column_angle(rule, eigenvalues)) for name, rule in rules.items()}
    values = {(name, "angle to the x axis"): angle for name, angle in angles.items()}
    values |= {(name, "error"): abs(angle - angles["original"]) for name, angle in angles.items()}
    by_threshold = {  # eqs. 58 and 59: what the threshold makes of the same column
        (f"t = {factor:g} / l_3", "rho"): float(residual(sg.Clip(factor / EXAMPLE[2]), eigenvalues))
        for factor in (0.5, 1, 2, 5, 10, 100)
    }
    arrows = {name: (math.cos(math.radians(angle)), math.sin(math.radians(angle))) for name, angle in angles.items()}
    return Computed(
        tables=(
            table(printed.columns, values, "Direction of [K_13, K_23] for the eigenvalues 0.02, 0.01, 0.01", "{:.4f}°"),
            table(("rho",), by_threshold, "Clipping by threshold (eq. 59)", "{:.4f}°"),
        ),
        curves=tuple(Curve(name, (0.0, x), (0.0, y)) for name, (x, y) in arrows.items()),
        x_label="K_13, direction only",
        y_label="K_23, direction only",
        agrees=agreement(printed, values),
        remarks=("Arrows have length 1: the true column is infinitely long.",),
    )


def remainder_surface(printed: Printed) -> Computed:
    """PAMI Figure 4: the part x^(K+1) of 1/gap that degree K discards, and the points A, B, C."""
    ratios, degrees = torch.linspace(0, 1, 101, dtype=torch.float64), torch.arange(31)
    z = ratios ** (degrees.unsqueeze(-1) + 1)
    points = {"A": (0.05 ** (1 / 10), 9), "B": (0.85, 9), "C": (0.85, 19)}
    values: dict[Where, float] = {}
    for name, (x, degree) in points.items():
        # What Taylor keeps of 1/(1 - x) is 1 - x^(K+1): our rule's own coefficient says so.
        pair = torch.tensor([1.0, x], dtype=torch.float64)
        kept = float(coefficients(sg.Taylor(degree), pair)[0, 1] * (1 - x))
        values |= {(name, "K"): float(degree), (name, "x"): x, (name, "discarded"): 100 * (1 - kept)}
    return Computed(
        tables=(table(printed.columns, values, "The points; discarded in %, from our Taylor rule"),),
        surfaces=(
            _surface(
                ratios,
                degrees,
                z,
                (0.05, 0.2),
                tuple((name, x, float(degree)) for name, (x, degree) in points.items()),
                "x = l_j / l_i",
                "K",
            ),
        ),
        agrees=agreement(printed, values, misprints=[("C", "discarded")]),
        remarks=("The ranges of the axes are ours: the text does not give the figure's.",),
    )


def angle_residuals(printed: Printed) -> Computed:
    """PAMI Figure 11: rho(q2, q3) of Taylor(9) for eigenvalues 1, q2, q3, in three ranges of q2."""
    close = 1 - 1e-6
    deepest = {"(a) q2 up to 1": (close + 1e-10, close), "(b) q2 up to 0.5": (0.5, 0.5), "(c) q2 up to 0.01": (0.01, 0.01)}
    smallest = "smallest ρ"
    values: dict[Where, float] = {}
    surfaces = []
    for (name, (q2, q3)), limit in zip(deepest.items(), (1.0, 0.5, 0.01), strict=True):
        values[name, smallest] = float(residual(sg.Taylor(DEGREE), torch.tensor([1.0, q2, q3], dtype=torch.float64)))
        values |= {(name, "q2"): q2, (name, "q3"): q3}
        q = torch.linspace(limit / 50, limit, 50, dtype=torch.float64)
        one, other = torch.meshgrid(q, q, indexing="ij")
        ones = torch.ones_like(one)
        # q3 <= q2; above the diagonal the two change places, so that the picture is whole.
        eigenvalues = torch.stack([ones, torch.maximum(one, other), torch.minimum(one, other)], -1)
        rho = residual(sg.Taylor(DEGREE), eigenvalues)
        surfaces.append(_surface(q, q, rho, (), ((name[:3], q2, q3),), "q2", "q3"))
    tied = float(residual(sg.Taylor(DEGREE), torch.ones(3, dtype=torch.float64)))
    return Computed(
        tables=(table(printed.columns, values, "The largest negative residuals, in degrees", "{:.12g}"),),
        surfaces=tuple(surfaces),
        agrees=agreement(printed, {where: value for where, value in values.items() if where[1] == smallest}) and tied == 0,
        remarks=(
            "rho is a function of q3 <= q2; the picture repeats it with the two exchanged.",
            f"Three equal eigenvalues: rho = {tied:g}°, as eq. 46 says.",
        ),
    )


def worked_example(printed: Sequence[Printed]) -> Computed:
    """PAMI eqs. 60 and 61: K and its Taylor expansion for the eigenvalues 0.02, 0.01, 0.01, and two angles."""
    eigenvalues = torch.tensor(EXAMPLE, dtype=torch.float64)
    exact, taylor, angles = printed
    shown, agree = [], []
    for theirs, rule in ((exact, sg.Analytic()), (taylor, sg.Taylor(DEGREE))):
        K = coefficients(rule, eigenvalues)
        values = {(str(i + 1), str(j + 1)): float(K[i, j]) for i in range(3) for j in range(3)}
        shown.append(table(theirs.columns, values, f"K by spectralgrad's {type(rule).__name__}", "{:.6g}"))
        agree.append(agreement(theirs, values, misprints=[("3", "2")]))
    rules = {"Taylor, K = 9": sg.Taylor(DEGREE), "clipped at 100": sg.Clip(THRESHOLD)}
    turned = {(name, angles.columns[0]): abs(float(residual(rule, eigenvalues))) for name, rule in rules.items()}
    return Computed(
        tables=(*shown, table(angles.columns, turned, "Angles between the true column and ours", "{:.4f}°")),
        agrees=all(agree) and agreement(angles, turned),
        remarks=("A tie is ordered by index: K is antisymmetric, where the paper prints the same sign on both sides.",),
    )


def _surface(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    levels: tuple[float, ...],
    points: tuple[tuple[str, float, float], ...],
    x_label: str,
    y_label: str,
) -> Surface:
    rows = tuple(tuple(float(value) for value in row) for row in z.tolist())
    return Surface(tuple(x.tolist()), tuple(y.double().tolist()), rows, levels, points, x_label, y_label)


# PAMI Figure 1a

EXPONENTS = (10, 11, 12, 13, 14)
DIMENSIONS = {
    "smoke": (6, 20, 60, 150),
    "short": (6, 10, 20, 40, 80, 150, 300),
    "paper": (6, 10, 20, 40, 80, 150, 220, 300, 400, 500, 600),
}
MATRICES = {"smoke": 2000, "short": 5000, "paper": 10_000}
CHUNK = 2**22  # numbers of X at a time


def smallest_gaps(d: int, matrices: int, distribution: str, generator: torch.Generator) -> Tensor:
    """The smallest gap between neighbouring eigenvalues of X X^T (matrices,), X (d, 2d) with rows of mean 0.

    In float64: at d = 600 the eigenvalues reach 3500, of which float32 does not resolve 2^-14.
    """
    draw = {"uniform": torch.rand, "normal": torch.randn}[distribution]
    # Made before: a small result among large matrices keeps the memory of each from the system, 24 GB of it in the end.
    found = torch.empty(matrices, dtype=torch.float64)
    for some in found.split(max(1, CHUNK // (2 * d * d))):
        X = draw(len(some), d, 2 * d, dtype=torch.float64, generator=generator)
        X = X - X.mean(-1, keepdim=True)
        some.copy_(torch.linalg.eigvalsh(X @ X.mT).diff(dim=-1).amin(-1))
    return found


def close_eigenvalues(scale: Scale) -> Computed:
    """PAMI Figure 1a: how often two eigenvalues of a random X X^T, not divided by n, lie within a threshold."""
    dimensions, matrices = DIMENSIONS[scale], MATRICES[scale]
    generator = torch.Generator().manual_seed(0)
    gaps = {d: smallest_gaps(d, matrices, "uniform", generator) for d in dimensions}
    rates = {(d, e): float((gap < 2.0**-e).double().mean()) for d, gap in gaps.items() for e in EXPONENTS}
    known = 150  # section 1 gives a number there
    normal = float((smallest_gaps(known, matrices, "normal", generator) < 2.0 ** -EXPONENTS[0]).double().mean())
    values = {("uniform on [0, 1]", "probability"): rates[known, EXPONENTS[0]], ("standard normal", "probability"): normal}
    x = tuple(float(d) for d in dimensions)
    return Computed(
        tables=(table(("probability",), values, "Two eigenvalues within 2^-10 at d = 150; the paper: more than 0.001"),),
        curves=tuple(Curve(f"2^-{e}", x, tuple(rates[d, e] for d in dimensions)) for e in EXPONENTS),
        x_label="dimension",
        y_label="probability",
        log="xy",
        remarks=(
            f"{matrices} matrices a dimension, n = 2d points, rows of mean 0, X X^T not divided by n, float64.",
            "The text does not say how the points are distributed: ours are uniform on [0, 1], with which its number at "
            "d = 150 comes out. Standard normal points spread the eigenvalues twelve times wider, and close pairs "
            "are about a hundred times rarer.",
        ),
    )

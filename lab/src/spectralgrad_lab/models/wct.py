"""The style-transfer network of PAMI fig. 8: content and style encoders, a generator of five whitening-colouring hops."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from spectralgrad.errors import OptionError, ShapeError
from spectralgrad.nn.powers import centred, covariance
from spectralgrad.validation import is_number, is_whole

from .wct_blocks import VARIANTS, Colours, Decomposed, Learned, Roots, at_least_single, grouped

__all__ = ["VARIANTS", "Colours", "StyleNetwork", "StylePair"]

STRIDE = 4  # of the features
PHOTO = "photo"
SMALL = 0.1  # factor of weights that should not matter much at the start


class Residual(nn.Module):
    """x + conv(relu(conv(x))) through half of the channels: the view of two full convolutions with half of their weights."""

    def __init__(self, channels: int, normalised: bool) -> None:
        super().__init__()
        inner = channels // 2
        norms = [nn.InstanceNorm2d(width) if normalised else nn.Identity() for width in (inner, channels)]
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 3, padding=1),
            norms[0],
            nn.ReLU(),
            nn.Conv2d(inner, channels, 3, padding=1),
            norms[1],
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.body(x)
        return y


def _stem(width: int, normalised: bool) -> nn.Sequential:
    """From RGB to 4 width channels at a quarter of the resolution: 7 x 7, then twice 4 x 4 with stride 2."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, padding=3, padding_mode="reflect")]
    for step, channels in enumerate((width, 2 * width, 4 * width)):
        if step:
            layers.append(nn.Conv2d(channels // 2, channels, 4, stride=2, padding=1))
        layers += [nn.InstanceNorm2d(channels)] if normalised else []
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def _refined(before: int, after: int) -> nn.Sequential:
    """Two convolutions at a resolution: strokes are made here, not in the hops."""
    first, second = (nn.Conv2d(channels, after, 3, padding=1) for channels in (before, after))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


class Generator(nn.Module):
    """Hops from high level to low level, then back to pictures (N, 3, 4 h, 4 w) in [0, 1].

    Each hop whitens the features in groups, colours them with its own (S_c, mu_c), and passes them to convolutions. There
    is no other normalisation: whitening is one. ``how`` is eps, iterations and deflation, of `Roots`.
    """

    def __init__(self, variant: str, width: int, group_size: int, hops: int, how: tuple[Any, ...]) -> None:
        super().__init__()
        channels = 4 * width
        self.group_size = group_size
        self.steps: Any = nn.ModuleList(
            Learned(channels, group_size) if variant == "gd" else Decomposed(channels, variant, group_size, *how)
            for _ in range(hops)
        )
        self.blocks = nn.ModuleList(Residual(channels, normalised=False) for _ in range(hops))
        self.colouring = None if variant == "gd" else Roots(variant, False, *how)
        self.up = nn.ModuleList(_refined(a, b) for a, b in ((channels, 2 * width), (2 * width, width)))
        self.last = nn.Conv2d(width, 3, 7, padding=3, padding_mode="reflect")

    def colours(self, style: Tensor) -> Colours:
        """What a style's features (N, C, h, w) give to every hop. The roots of all hops are one batched decomposition."""
        if self.colouring is None:
            found = [step.colours(style.mean((2, 3))) for step in self.steps]
            matrices, means, penalties = (
                torch.stack(parts, -1 if parts[0].ndim == 0 else 1) for parts in zip(*found, strict=True)
            )
            return Colours(matrices, means, penalties.mean())
        features = torch.stack([step.mlp(style) for step in self.steps], 1)  # (N, hops, C, h, w)
        with torch.autocast(style.device.type, enabled=False):
            X, mean = centred(grouped(features.flatten(0, 1), self.group_size))
            matrices = self.colouring(covariance(X))
            shape = features.shape[:2]
            return Colours(matrices.unflatten(0, shape), mean.flatten(1).unflatten(0, shape), X.new_zeros(()))

    def forward(self, x: Tensor, colours: Colours) -> tuple[Tensor, Tensor]:
        """Pictures from content features x (N, C, h, w), and the mean penalty of the hops."""
        penalties = []
        for i, (step, block) in enumerate(zip(self.steps, self.blocks, strict=True)):
            x, penalty = step(x, colours.matrices[:, i], colours.means[:, i])
            x = block(x)
            penalties.append(penalty)
        for convolutions in self.up:
            x = convolutions(interpolate(x, scale_factor=2.0, mode="nearest"))
        return (at_least_single(self.last(x)).tanh() + 1) / 2, torch.stack(penalties).mean()


class StyleNetwork(nn.Module):
    """Paints a content picture in the style of an exemplar: the network of PAMI fig. 8, for one direction.

    The content's features are whitened in groups and coloured by the style's, hop by hop:

        x <- conv(S_c^(i) (Sigma_x + eps I)^(-1/2) (x - mu_x) + mu_c^(i)),      i = 1 ... hops,

    with S_c^(i) = (Sigma_i + eps I)^(1/2) and mu_c^(i) the root covariance and the mean of the exemplar's features after the
    hop's own MLP. See docs/style-network.md, which says what of this is the text's and what is our reading of it.

    Args:
        variant: gd, whitening and colouring learned with regularisers; or by decomposition, with the gradient clip, pi,
            taylor or exact.
        width: channels after the first convolution; the hops have four times as many, 256 in the paper.
        group_size: channels that are whitened together; must divide 4 width.
        eps: the shift of the covariances.
        iterations: K of taylor (9) or the steps of pi (19).
        deflation: of pi: two-sided, or printed as in NIPS19.
        hops: whitening-colouring steps.
        blocks: residual blocks of the content encoder.

    Raises:
        OptionError: an option out of its range.

    >>> network = StyleNetwork("exact", width=4, group_size=8)
    >>> network(torch.rand(2, 3, 16, 16), torch.rand(2, 3, 32, 24)).shape
    torch.Size([2, 3, 16, 16])
    """

    def __init__(
        self,
        variant: str,
        *,
        width: int = 64,
        group_size: int = 32,
        eps: float = 0.01,
        iterations: int | None = None,
        deflation: str = "two-sided",
        hops: int = 5,
        blocks: int = 2,
    ) -> None:
        _require_options(variant, width, group_size, eps, iterations, deflation, hops, blocks)
        super().__init__()
        self.variant = variant
        channels = 4 * width
        self.content = nn.Sequential(_stem(width, normalised=True), *(Residual(channels, True) for _ in range(blocks)))
        # No normalisation here: means and covariances are what this encoder has to tell.
        self.style = nn.Sequential(_stem(width, normalised=False), Residual(channels, False))
        self.generator = Generator(variant, width, group_size, hops, (eps, iterations, deflation))
        self._start()

    def _start(self) -> None:
        """Weights that keep the variance; residual parts and the last convolution are small, so that tanh is not flat."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        small: list[Any] = [block.body[3] for block in self.modules() if isinstance(block, Residual)]
        with torch.no_grad():
            for convolution in (*small, self.generator.last):
                convolution.weight.mul_(SMALL)

    def encode(self, pictures: Tensor) -> Tensor:
        """Content features (N, 4 width, H / 4, W / 4) of pictures in [0, 1]."""
        features: Tensor = self.content(2 * pictures - 1)
        return features

    def colours(self, pictures: Tensor) -> Colours:
        """What the hops need to know of style pictures (N, 3, H, W) in [0, 1]."""
        return self.generator.colours(self.style(2 * pictures - 1))

    def paint(self, features: Tensor, colours: Colours) -> tuple[Tensor, Tensor]:
        """Pictures in [0, 1] from content features, and the penalty of the whitening."""
        pictures, penalty = self.generator(features, colours)
        return pictures, penalty

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        """Content (N, 3, H, W) in the style of (N, 3, H', W'); sides are multiples of 4."""
        return self.paint(self.encode(content), self.colours(style))[0]


class StylePair(nn.Module):
    """Two networks that are trained together: from photographs to art, and back. `trained` returns one.

    Args:
        to_art: from photographs to art.
        to_photo: the way back; None where it is not there.
        domains: the kinds of art.

    >>> pair = StylePair(StyleNetwork("taylor", width=4, group_size=8), None, ("monet",)).eval()
    >>> pair.stylise(torch.rand(1, 3, 18, 21), torch.rand(1, 3, 16, 16), "monet").shape
    torch.Size([1, 3, 18, 21])
    """

    def __init__(self, to_art: StyleNetwork, to_photo: StyleNetwork | None, domains: tuple[str, ...]) -> None:
        super().__init__()
        self.to_art, self.to_photo, self.domains = to_art, to_photo, tuple(domains)

    @torch.no_grad()
    def stylise(self, content: Tensor, style: Tensor, domain: str) -> Tensor:
        """Content pictures in the style of exemplars from a domain.

        Args:
            content: (N, 3, H, W) in [0, 1], of any size from 8 pixels a side.
            style: (N, 3, H', W') in [0, 1], one for each content.
            domain: of the exemplars; "photo" takes the way back.

        Returns:
            (N, 3, H, W) in [0, 1].

        Raises:
            OptionError: a domain that the pair was not trained for.
            ShapeError: no such pictures.
        """
        network = self.to_photo if domain == PHOTO else self.to_art if domain in self.domains else None
        if network is None:
            known = (*self.domains, *([PHOTO] if self.to_photo is not None else []))
            raise OptionError(f"`stylise`: domain must be one of {', '.join(known)}, got {domain!r}.")
        for name, x in (("content", content), ("style", style)):
            if x.ndim != 4 or x.shape[1] != 3 or min(x.shape[2:]) < 2 * STRIDE or len(x) != len(content):
                raise ShapeError(
                    f"`stylise`: {name} must be (N, 3, H, W) with sides of at least {2 * STRIDE} pixels and as many "
                    f"pictures as content, got {tuple(x.shape)}."
                )
        height, width = content.shape[2:]
        painted: Tensor = network(_whole(content), _whole(style))
        return painted[..., :height, :width]


def _whole(x: Tensor) -> Tensor:
    """Pictures (N, 3, H, W), continued by reflection to sides that are multiples of the stride."""
    down, right = (-side % STRIDE for side in x.shape[2:])
    return pad(x, (0, right, 0, down), mode="reflect") if down or right else x


def _require_options(
    variant: str, width: int, group_size: int, eps: float, iterations: int | None, deflation: str, hops: int, blocks: int
) -> None:
    if variant not in VARIANTS:
        raise OptionError(f"`StyleNetwork`: variant must be one of {', '.join(VARIANTS)}, got {variant!r}.")
    for name, value in (("width", width), ("group_size", group_size), ("hops", hops), ("blocks", blocks)):
        if not is_whole(value):
            raise OptionError(f"`StyleNetwork`: {name} must be a whole number >= 1, got {value!r}.")
    if 4 * width % group_size:
        raise OptionError(f"`StyleNetwork`: group_size must divide the {4 * width} channels (4 width), got {group_size}.")
    if not (is_number(eps) and eps > 0):
        raise OptionError(f"`StyleNetwork`: eps must be a finite number > 0, got {eps!r}.")
    if deflation != "two-sided" and variant == "gd":
        raise OptionError(f"`StyleNetwork`: deflation is that of pi; gd has none, got {deflation!r}.")
    if iterations is not None and variant == "gd":
        raise OptionError(f"`StyleNetwork`: iterations are those of taylor and pi; gd has none, got {iterations!r}.")

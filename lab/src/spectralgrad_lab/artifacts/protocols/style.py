"""What the style artifacts share: their scales in words."""

from spectralgrad_lab.style_network.trial import style_trial

_SMOKE, _SHORT = style_trial("taylor", "smoke"), style_trial("taylor", "short")
SMOKE = f"Pictures that a program draws, small networks, {_SMOKE.steps} steps: that it runs, not how it looks."
SHORT = (
    f"Photographs and the domains of the artworks at {_SHORT.size} pixels, one network for all domains, {_SHORT.steps} "
    f"steps on crops of {_SHORT.crop} pixels: minutes on a large GPU, where the paper trains a network for each domain, 21 "
    "hours on a Titan XP."
)
HOPS = (
    "A hop whitens each picture by itself; the text writes statistics over the batch, C x BHW, which in its tests, with "
    "batches of 1, is the same. PI-WCT deflates as printed. Cezanne is a column where the data has that folder."
)
PAPER = "One network for each domain. The text gives no size of the pictures, steps, batch or learning rate: these are ours."


def says(more: str = "") -> dict[str, str]:
    """What the scales do."""
    return {scale: f"{text} {HOPS} {more}".strip() for scale, text in (("smoke", SMOKE), ("short", SHORT), ("paper", PAPER))}

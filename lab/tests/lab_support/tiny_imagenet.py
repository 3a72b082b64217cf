"""Tiny ImageNet's layout, drawn."""

from pathlib import Path

from PIL import Image

CLASSES = ("n01443537", "n01629819", "n01641577")


def save(path: Path, color: object, size: tuple[int, int] = (64, 64), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)  # type: ignore[arg-type]
    return path


def write_tiny(root: Path) -> Path:
    """Three classes of two images; the second of each is grey, as a few hundred of the real ones are."""
    folder = root / "tiny-imagenet-200"
    for index, name in enumerate(CLASSES):
        save(folder / "train" / name / "images" / f"{name}_0.JPEG", (80 * index, 0, 0))
        save(folder / "train" / name / "images" / f"{name}_1.JPEG", 40 * index, mode="L")
        (folder / "train" / name / f"{name}_boxes.txt").write_text("not read")
    (folder / "wnids.txt").write_text("\n".join(reversed(CLASSES)) + "\n")
    lines = []
    for index, name in enumerate(CLASSES):
        save(folder / "val" / "images" / f"val_{index}.JPEG", (0, 80 * index, 0))
        lines.append(f"val_{index}.JPEG\t{name}\t0\t0\t63\t63")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return folder

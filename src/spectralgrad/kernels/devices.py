"""What a device must have before any kernel can run there."""

import torch


def cuda_obstacle(device: torch.device) -> str | None:
    """What keeps CUDA code from running on ``device``, in words; None where it runs."""
    if device.type != "cuda":
        return f"needs a CUDA device, and this is {device.type}"
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU, or no driver for it"
    count = torch.cuda.device_count()
    return None if (device.index or 0) < count else f"there is no {device}: torch sees {count} of them"

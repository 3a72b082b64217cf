"""What of a layer cannot be exported, said before the exporter says it in its own words."""

import torch

from spectralgrad.compiling import constant_when_compiled, is_exporting
from spectralgrad.errors import OptionError
from spectralgrad.linalg.choices import RootSolver, is_plain_products


@constant_when_compiled  # Dynamo takes torch's own answer for False
def _to_onnx() -> bool:
    return bool(torch.onnx.is_in_onnx_export())


def require_no_onnx(who: str, solver: RootSolver) -> None:
    """Raise while torch.onnx exports, unless ``solver`` is a fixed number of products: ONNX has no eigendecomposition.

    Asked only while torch compiles, as it does when it exports.
    """
    if not is_exporting() or not _to_onnx() or is_plain_products(solver):
        return
    raise OptionError(
        f"`{who}`: ONNX has no eigendecomposition. In eval mode the layer is a fixed affine map: export "
        "`sg.nn.fuse(model.eval())`, which holds it as a convolution."
    )

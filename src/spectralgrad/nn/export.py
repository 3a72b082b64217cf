"""What of a layer torch.onnx cannot take, said before it says so in its own words."""

from spectralgrad.context import exporting, exporting_to_onnx
from spectralgrad.errors import OptionError
from spectralgrad.linalg.choices import RootSolver, is_plain_products


def require_no_onnx(who: str, solver: RootSolver) -> None:
    """Raise while torch.onnx exports, unless ``solver`` is a fixed number of products: ONNX has no eigendecomposition.

    Asked only while torch compiles, as it does when it exports.
    """
    if not exporting() or not exporting_to_onnx() or is_plain_products(solver):
        return
    raise OptionError(
        f"`{who}`: ONNX has no eigendecomposition. In eval mode the layer is a fixed affine map: export "
        "`sg.nn.fuse(model.eval())`, which holds it as a convolution."
    )

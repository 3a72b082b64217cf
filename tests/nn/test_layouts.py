"""Sparse, mkldnn and nested tensors are refused by name, at every door."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import DtypeError
from spectralgrad.nn import CovariancePool2d, DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, PCADenoise2d, WhitenColor2d
from spectralgrad.nn.functional import color_transfer, covariance_pool, whiten, whiten_color
from spectralgrad.orthogonal import OrthogonalConv2d, orthogonal_loss

Call = Callable[[Tensor], Any]
MATRICES: dict[str, Call] = {
    "eigh": sg.eigh,
    "svd": sg.svd,
    "polar": sg.polar,
    "sqrtm": sg.sqrtm,
    "inv_sqrtm": sg.inv_sqrtm,
    "logm": sg.logm,
    "expm": sg.expm,
    "powm": lambda M: sg.powm(M, 0.3),
    "spectral_map": lambda M: sg.spectral_map(M, torch.atan),
    "projector": lambda M: sg.projector(M, rank=1),
    "covariance": sg.covariance,
    "moments": sg.moments,
    "DecorrelatedBatchNorm1d": DecorrelatedBatchNorm1d(4),
    "whiten": whiten,
}
STYLE = torch.rand(1, 3, 4, 4)
MAPS: dict[str, Call] = {
    "DecorrelatedBatchNorm2d": DecorrelatedBatchNorm2d(3),
    "PCADenoise2d": PCADenoise2d(3),
    "CovariancePool2d": CovariancePool2d(3, reduced=2),
    "covariance_pool": covariance_pool,
    "whiten": whiten,
    "whiten_color": lambda x: whiten_color(x, STYLE),
    "whiten_color style": lambda x: whiten_color(STYLE, x),
    "whiten_color layer": lambda x: WhitenColor2d()(x, STYLE),
    "color_transfer": lambda x: color_transfer(x, STYLE),
    "OrthogonalConv2d": OrthogonalConv2d(3, 4, 3),
    "orthogonal_loss": orthogonal_loss,
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "mkldnn": lambda x: x.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name: str, layout: str) -> None:
    M = torch.eye(4) + 1
    MATRICES[name](M)
    x = LAYOUTS[layout](M)
    with pytest.raises(
        DtypeError, match=rf"^`{name}`: .* must be a dense \(strided\) tensor, got layout .*{x.layout}.*to_dense"
    ):
        MATRICES[name](x)


@pytest.mark.parametrize("layout", ["coo", "mkldnn"])
@pytest.mark.parametrize("name", MAPS)
def test_maps(name: str, layout: str) -> None:
    x = torch.rand(2, 3, 4, 4) if name != "whiten_color style" else STYLE
    MAPS[name](x)
    with pytest.raises(DtypeError, match=r"^`\w+`: .* must be a dense \(strided\) tensor, got layout .*to_dense"):
        MAPS[name](LAYOUTS[layout](x))


@pytest.mark.parametrize("name", MAPS)
def test_eight_bits(name: str) -> None:
    """They are floating point for torch, which then cannot even promote them."""
    x = (torch.rand(2, 3, 4, 4) if name != "whiten_color style" else STYLE).to(torch.float8_e4m3fn)
    with pytest.raises(DtypeError, match=r"^`\w+`: .* must .*, got torch.float8_e4m3fn"):
        MAPS[name](x)


@pytest.mark.filterwarnings("ignore")  # nested tensors announce their end
@pytest.mark.parametrize("name", MAPS)
def test_nested_maps(name: str) -> None:
    with pytest.raises(DtypeError, match=r"^`\w+`: .* must be a dense \(strided\) tensor, got a nested tensor. Pad it"):
        MAPS[name](torch.nested.nested_tensor([*torch.rand(2, 3, 4, 4)]))


@pytest.mark.filterwarnings("ignore")  # nested and quantized tensors announce their end
def test_nested_and_quantized() -> None:
    nested = torch.nested.nested_tensor([torch.eye(2), torch.eye(3)])
    with pytest.raises(DtypeError, match=r"`eigh`: `M` must be a dense \(strided\) tensor, got a nested tensor. Pad it"):
        sg.eigh(nested)
    quantized = torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8)
    with pytest.raises(DtypeError, match=r"got torch.qint8. Convert it with M.dequantize\(\)"):
        sg.eigh(quantized)


def test_a_refused_layer_is_unchanged() -> None:
    layer = DecorrelatedBatchNorm1d(4)
    with pytest.raises(DtypeError):
        layer(torch.eye(4).to_sparse())
    assert int(layer.num_batches_tracked or 0) == 0

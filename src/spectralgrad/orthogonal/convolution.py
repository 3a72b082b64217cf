"""An orthogonal convolution: the exponential of a skew convolution, applied to the image by its series (ECCV22's ref. 45).

A convolution with an odd kernel, stride 1 and padding by half of the kernel is a linear map of the image. Its transpose is
the convolution with the kernel M^T[i, j, a, b] = M[j, i, -a, -b], whether it is padded by zeros or around the image. So the
kernel L = M - M^T is a skew map, and exp(L) x = x + L x + L(L x) / 2 + ... keeps the norm of every image. The series needs
no kernel for exp(L), which would be as large as the image.

The terms are |L|^k / k!. As in ref. 45, L is scaled to a norm of at most 1: an output is a product of L, seen as
(C, C kh kw), with a patch, and an entry of the image stands in kh kw patches, so |L| <= sqrt(kh kw) s_max(L).
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.functional import conv2d, pad

from spectralgrad.context import kept_whole
from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.linalg.eigh import eigh
from spectralgrad.linalg.precision import matmul
from spectralgrad.validation import is_whole, require_dense, require_one_of

__all__ = ["OrthogonalConv2d"]

Padding = Literal["zeros", "circular"]


class OrthogonalConv2d(nn.Module):
    """A convolution of stride 1 that keeps the norm of every image: exp(L) x with a skew convolution L (ECCV22's OW).

    L = M - M^T for the parameter M (C, C, k, k), C the larger number of channels, divided by a bound of its norm where
    that is above 1. With fewer inputs than outputs the image is filled up with channels of zeros, and its norm is kept.
    With fewer outputs the last channels are dropped, and no norm grows. With 1 x 1 kernels it is `orthogonal_weight` for
    a square weight. The series is summed to the rounding of the dtype: 11 convolutions in float32.

    Args:
        in_channels, out_channels: of the images.
        kernel_size: odd.
        padding_mode: "zeros" or "circular"; the map is orthogonal with both.
        device, dtype: of the parameter; real.

    Shape: (N, in_channels, H, W) -> (N, out_channels, H, W).

    Raises:
        OptionError: an option out of its range.
        ShapeError, DtypeError: an input that is no batch of images with so many channels, or has another dtype than the
            weight; or a dtype that is not real.

    >>> import torch, spectralgrad as sg
    >>> conv = sg.orthogonal.OrthogonalConv2d(3, 8, 3)
    >>> x = torch.randn(2, 3, 6, 6)
    >>> torch.allclose(conv(x).norm(), x.norm(), rtol=1e-5)
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        padding_mode: Padding = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        who = type(self).__name__
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not is_whole(value):
                raise OptionError(f"`{who}`: {name} must be a whole number >= 1, got {value!r}.")
        if not is_whole(kernel_size) or kernel_size % 2 == 0:
            raise OptionError(f"`{who}`: kernel_size must be an odd whole number, got {kernel_size!r}.")
        require_one_of(who, "padding_mode", padding_mode, ("zeros", "circular"))
        if dtype is not None and not dtype.is_floating_point:
            raise DtypeError(f"`{who}`: dtype must be real and floating point, got {dtype}.")
        super().__init__()
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.padding_mode = padding_mode
        channels = max(in_channels, out_channels)
        shape = (channels, channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A random skew map: Kaiming's normal distribution by fan-out, as in the convolutions that it replaces."""
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")

    def skew_kernel(self) -> Tensor:
        """L (C, C, k, k), of norm 1 at most."""
        size = self.weight.detach().abs().amax().clamp(min=1)  # so that squares do not overflow
        M = self.weight / size
        L = M - M.transpose(0, 1).flip(-2, -1)
        R = L.flatten(1)
        R = R.to(torch.promote_types(R.dtype, torch.float32))
        square = eigh(matmul(R, R.mT))[0][-1] * self.kernel_size**2
        least = size.to(square.dtype).reciprocal().square()
        bound = torch.where(square > least, square, least).sqrt()
        return L / bound.to(L.dtype)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        self._require_image(input)
        L = self.skew_kernel()
        extra = L.shape[0] - self.in_channels
        term = pad(input, (0, 0, 0, 0, 0, extra)) if extra else input  # channels of zeros
        total = term
        for k in range(1, _terms(L.dtype) + 1):
            term = self._convolve(term, L) / k
            total = total + term
        return total[:, : self.out_channels]

    def _require_image(self, input: Tensor) -> None:
        who, half = type(self).__name__, self.kernel_size // 2
        if isinstance(input, Tensor):
            require_dense(who, input, "input")
        if not isinstance(input, Tensor) or input.ndim != 4 or input.shape[1] != self.in_channels:
            came = tuple(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise ShapeError(
                f"`{who}`: `input` must be images (N, {self.in_channels}, H, W), got {came}. A single image is (1, C, H, W)."
            )
        if input.dtype != self.weight.dtype and not torch.is_autocast_enabled(input.device.type):
            raise DtypeError(
                f"`{who}`: `input` must have the dtype of the weight, {self.weight.dtype}, got {input.dtype}. Convert one."
            )
        if self.padding_mode == "circular" and min(input.shape[-2:]) < half:
            raise ShapeError(
                f"`{who}`: images must be at least {half} high and wide to be padded around, got {tuple(input.shape)}. "
                'Take a smaller kernel, or padding_mode="zeros".'
            )

    def _convolve(self, x: Tensor, kernel: Tensor) -> Tensor:
        half = self.kernel_size // 2
        if self.padding_mode == "circular":
            return conv2d(pad(x, (half, half, half, half), mode="circular"), kernel)
        return conv2d(x, kernel, padding=half)

    def extra_repr(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{sizes}, padding_mode={self.padding_mode!r}"


def _terms(dtype: torch.dtype) -> int:
    """How many terms of exp(1) come before 1 / k! is below the rounding of a dtype.

    >>> _terms(torch.float32), _terms(torch.float64)
    (11, 18)
    """
    k = 1
    while 1 / math.factorial(k) > torch.finfo(dtype).eps:
        k += 1
    return k

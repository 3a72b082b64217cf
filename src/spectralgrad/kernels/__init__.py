"""GPU kernels, each beside a plain-torch twin of the same signature; forward only, called inside our autograd Functions."""

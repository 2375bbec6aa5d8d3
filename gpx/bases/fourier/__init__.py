"""Fourier features of stationary kernels: random, orthogonal, by quadrature."""

"""The case class that ships with linear_operator, on a kernel matrix with a small diagonal."""

import unittest

import torch
from package_cases import SquareCase

from gpx.kernels import RBF


class TestKernelMatrix(SquareCase, unittest.TestCase):
    """float32, tiles of a few rows; dense solves at this size call no CG, no Lanczos."""

    seed = 3
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False

    def create_linear_op(self):
        # well apart, so that the matrix is well conditioned and its eigenvalues are distinct
        x = torch.tensor([[0.0, 0.0], [1.3, 0.2], [0.1, 1.7], [2.9, 0.4], [1.6, 2.2]])
        kernel = RBF(2, [0.8, 1.1], 1.4).float()
        return kernel(x.requires_grad_(), memory_budget=4 * 16, backend="chunked")

    def evaluate_linear_op(self, linear_op):
        entries = linear_op.entries
        raw = dict(zip(entries.names, entries.parameters, strict=True))
        positive = torch.nn.functional.softplus
        lengthscale, outputscale = (
            positive(next(v for n, v in raw.items() if name in n)) + 1e-6
            for name in ("lengthscale", "outputscale")
        )
        difference = (entries.x1[:, None] - entries.x1) / lengthscale
        return outputscale * torch.exp(-0.5 * difference.square().sum(-1))

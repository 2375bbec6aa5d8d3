"""Lazy structure: one ``LinearOperator`` subclass per file."""

from gpx.operators.kernel_matrix import KernelMatrix

__all__ = ["KernelMatrix"]

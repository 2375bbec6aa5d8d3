"""Eigenfunctions of a kernel on a product grid that is never formed."""

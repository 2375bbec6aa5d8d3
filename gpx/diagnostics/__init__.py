"""Certified statements about approximate inference."""

from gpx.diagnostics.evidence_bounds import EvidenceBounds, evidence_bounds
from gpx.diagnostics.kl_bounds import (
    kl_upper_bound,
    kl_upper_bound_cg,
    kl_upper_bound_trace,
    total_variation_bound,
)

__all__ = [
    "EvidenceBounds",
    "evidence_bounds",
    "kl_upper_bound",
    "kl_upper_bound_cg",
    "kl_upper_bound_trace",
    "total_variation_bound",
]

"""Certified bounds on approximate inference, and diagnostics of calibration."""

from gpx.diagnostics.a_priori import (
    Suggestion,
    determinantal_kl_bound,
    expected_effective_dimension,
    leverage_kl_bound,
    suggest_num_inducing,
)
from gpx.diagnostics.effective_dimension import effective_dimension
from gpx.diagnostics.evidence_bounds import EvidenceBounds, evidence_bounds
from gpx.diagnostics.expected_kl import expected_kl, expected_kl_bracket, points_for_expected_kl
from gpx.diagnostics.kl_lower_bounds import (
    expected_kl_lower_bound,
    kl_lower_bound,
    worst_kl_lower_bound,
)
from gpx.inference.kl_bounds import (
    kl_upper_bound,
    kl_upper_bound_cg,
    kl_upper_bound_trace,
    total_variation_bound,
)

__all__ = [
    "EvidenceBounds",
    "Suggestion",
    "determinantal_kl_bound",
    "effective_dimension",
    "evidence_bounds",
    "expected_effective_dimension",
    "expected_kl",
    "expected_kl_bracket",
    "expected_kl_lower_bound",
    "kl_lower_bound",
    "kl_upper_bound",
    "kl_upper_bound_cg",
    "kl_upper_bound_trace",
    "leverage_kl_bound",
    "points_for_expected_kl",
    "suggest_num_inducing",
    "total_variation_bound",
    "worst_kl_lower_bound",
]

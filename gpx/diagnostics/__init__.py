"""Certified statements about approximate inference."""

from gpx.diagnostics.evidence_bounds import EvidenceBounds, evidence_bounds

__all__ = ["EvidenceBounds", "evidence_bounds"]

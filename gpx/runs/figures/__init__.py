"""Figures of a finished run."""

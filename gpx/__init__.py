"""gpx: Gaussian processes that do not fit (too many points, too many basis functions, or both).

Five lines from a trained run to predictions in the data's own units::

    import gpx

    model = gpx.load("outputs/...")
    mean, std, lower, upper = model.predict(inputs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpx.training.predictor import load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    # ``import gpx`` stays light: training pulls in Hydra, TensorBoard and Matplotlib
    if name == "load":
        from gpx.training.predictor import load

        return load
    raise AttributeError(f"module 'gpx' has no attribute {name!r}")

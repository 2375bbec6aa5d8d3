"""gpx: Gaussian processes that do not fit (too many points, too many basis functions, or both).

Train on arrays and predict in their own units, or load a trained run::

    import gpx

    fitted = gpx.fit(x, y, approx="sgpr", kernel="matern32")
    mean, std, lower, upper = fitted.predict(inputs)
    mean, std, lower, upper = gpx.load("outputs/...").predict(inputs)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpx.runs.exporting.export import export
    from gpx.runs.fit import Fitted, fit
    from gpx.runs.loading import load

__version__ = "0.1.0"
__all__ = ["Fitted", "__version__", "export", "fit", "load"]

PARTS = frozenset(
    {"backends", "bases", "botorch", "calibration", "constraints", "data", "diagnostics", "errors"}
    | {"inducing", "kernels", "likelihoods", "linalg", "means", "metrics", "models", "objectives"}
    | {"operators", "priors", "runs", "sampling", "sklearn", "thompson", "training"}
)
"""Modules that are attributes of the package: ``gpx.kernels.RBF()``."""


def __getattr__(name: str) -> Any:
    # imported on first use: runs need Hydra, TensorBoard and Matplotlib, the others need extras
    if name in ("Fitted", "export", "fit", "load"):
        import gpx.runs

        return getattr(gpx.runs, name)
    if name in PARTS:
        return importlib.import_module(f"gpx.{name}")
    raise AttributeError(f"module 'gpx' has no attribute {name!r}")


def __dir__() -> list[str]:
    # what goes through all attributes, as inspect.getmembers does, must not need an extra
    return sorted({*globals(), *__all__, *PARTS} - {"botorch", "sklearn"})

"""A trained model as an ONNX program: predictions in any runtime that reads ONNX."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from gpx.errors import BackendUnavailable, ConfigError, class_name
from gpx.runs.exporting.torch_program import (
    PredictionModule,
    on_the_cpu,
    program_of,
    require_agreement,
    require_numbers,
    rows_near_the_data,
    silence,
)
from gpx.runs.predictor import Predictor

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
"""Packages that write and check the program."""

OUTPUTS = ("predictive_mean", "predictive_std")
"""Names of the outputs of the program, in this order."""


class SolvedModule(PredictionModule):
    """``PredictionModule`` that multiplies by inverses of triangular factors: ONNX has no solve.

    Args:
        predictor: on the CPU, with filled caches.
        rows (r, d): any inputs; the factors are recorded while predicting at them.
    """

    def __init__(self, predictor: Predictor, rows: Tensor) -> None:
        super().__init__(predictor)
        found: list[Tensor] = []

        def inverted(factor: Tensor, upper: bool) -> Tensor:
            identity = torch.eye(len(factor), dtype=factor.dtype)
            found.append(_SOLVE(factor, identity, upper=upper))
            return found[-1]

        with torch.no_grad(), _solves_as_products(inverted):
            super().forward(rows)
        self.inverses = nn.ParameterList([nn.Parameter(each, False) for each in found])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As in ``PredictionModule``."""
        known = iter(self.inverses)
        with _solves_as_products(lambda factor, upper: next(known)):
            return super().forward(x)


_SOLVE = torch.linalg.solve_triangular
_TRACING = threading.RLock()
"""Held by the thread whose solves are products."""


@contextlib.contextmanager
def _solves_as_products(inverse: Any) -> Iterator[None]:
    """Inside, triangular solves of this thread become products with ``inverse(factor, upper)``."""
    tracing = threading.get_ident()

    def solve(
        factor: Tensor,
        right: Tensor,
        *,
        upper: bool,
        left: bool = True,
        unitriangular: bool = False,
        out: Tensor | None = None,
    ) -> Tensor:
        if threading.get_ident() != tracing:
            options = {"upper": upper, "left": left, "unitriangular": unitriangular}
            return _SOLVE(factor, right, **options, out=out)
        product = inverse(factor, upper) @ right if left else right @ inverse(factor, upper)
        return product if out is None else out.copy_(product)

    with _TRACING:
        before = torch.linalg.solve_triangular
        torch.linalg.solve_triangular = solve
        try:
            yield
        finally:
            torch.linalg.solve_triangular = before


def require_packages() -> None:
    """Raise BackendUnavailable if onnx, onnxscript or onnxruntime is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise BackendUnavailable(
            f"format=onnx needs {', '.join(missing)}: pip install 'gpx-torch[onnx]'"
        )


def onnx_program(predictor: Predictor) -> Any:
    """Convert a trained model to ONNX, and compare its predictions in onnxruntime with the model.

    Args:
        predictor: of ``gpx.load`` or ``gpx.fit``.

    Returns:
        a ``torch.onnx.ONNXProgram`` from ``x`` (n, d), float64, to ``OUTPUTS``, (n,) each.

    Raises:
        BackendUnavailable: onnx, onnxscript or onnxruntime is not installed.
        ConfigError: as ``torch_program``, or the posterior uses operations that ONNX lacks.
    """
    require_packages()
    import onnxruntime

    require_numbers(predictor, "onnx")
    kind, rows = class_name(predictor.posterior), rows_near_the_data(predictor)
    own = on_the_cpu(predictor)
    known = own.predict(rows.numpy())
    own.posterior.fix()
    module = SolvedModule(own, rows).eval()
    program = program_of(module, rows, "onnx", kind)
    try:
        with silence():
            found = torch.onnx.export(
                program, (rows,), input_names=["x"], output_names=list(OUTPUTS), dynamo=True
            )
    except Exception as error:  # torch may raise anything
        raise ConfigError(
            f"format=onnx: predictions of {kind} use operations that ONNX does not have; use "
            "format=torch, or train with approx=sgpr, svgp, ssgp, qsgp, ski or exact"
        ) from error
    assert found is not None
    session = onnxruntime.InferenceSession(found.model_proto.SerializeToString())
    require_agreement(session.run(None, {"x": rows.numpy()}), known, module.dtype, "onnx", kind)
    return found

"""TensorBoard events: evidence, hyperparameters, learning rates, metrics, figures, config."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from pathlib import Path

import torch
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from gpx.constraints import natural_parameters
from gpx.methods.base.model import Model
from gpx.training.progress import Progress

MAX_HISTOGRAM_ENTRIES = 64
"""Of longer parameters (inducing points, variational means) only the root mean square is shown."""
RGBA = 4
"""Colour space of a picture, as TensorBoard numbers them."""


class TensorBoard:
    """Monitor that writes events.

    Args:
        folder: event folder.
        first_step: earlier events at or after this step are superseded, in a resumed run.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        self._hook = threading.excepthook
        threading.excepthook = self._ignore_writer_thread
        try:
            self._writer = SummaryWriter(str(folder), purge_step=first_step or None)
        except BaseException:
            threading.excepthook = self._hook
            raise

    def _ignore_writer_thread(self, failure: threading.ExceptHookArgs) -> None:
        """Print no errors of the writer's thread: the next call raises them again."""
        if not type(failure.thread).__module__.startswith("tensorboard."):
            self._hook(failure)

    def progress(self, progress: Progress, model: Model) -> None:
        """Monitor interface."""
        for name, number in progress.scalars().items():
            self._writer.add_scalar(name, number, progress.step)
        for name, value in natural_parameters(model).items():
            self._parameter(name, value, progress.step)

    def _parameter(self, name: str, value: torch.Tensor, step: int) -> None:
        """Add a parameter: a number, a histogram of a vector, or the size of a long array."""
        tag = "hyperparameters/" + name
        if value.numel() == 0:
            return
        if value.ndim == 0:
            self._writer.add_scalar(tag, value.item(), step)
        elif value.numel() > MAX_HISTOGRAM_ENTRIES:
            size = value.square().mean().sqrt().item()
            self._writer.add_scalar(f"variational/{name}/rms", size, step)
        elif value.isfinite().all():
            self._writer.add_histogram(tag, value, step, bins=min(value.numel() + 1, 16))

    def text(self, name: str, text: str) -> None:
        """Show ``text`` as code, under TEXT."""
        self._writer.add_text(name, "".join(f"    {line}\n" for line in text.splitlines()))

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Monitor interface."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"test/{name}", value, step)

    def figure(self, name: str, picture: bytes, step: int) -> None:
        """Add one figure, a PNG file; ``SummaryWriter.add_figure`` would draw it once more."""
        width, height = struct.unpack(">II", picture[16:24])  # of the first chunk of every PNG
        image = Summary.Image(
            height=height, width=width, colorspace=RGBA, encoded_image_string=picture
        )
        writer = self._writer._get_file_writer()
        assert writer is not None
        writer.add_summary(Summary(value=[Summary.Value(tag=f"figures/{name}", image=image)]), step)

    def outcome(
        self, settings: Mapping[str, str | bool | float], metrics: Mapping[str, float]
    ) -> None:
        """Enter options and final metrics into HPARAMS.

        The summaries go into the events of this run; ``SummaryWriter.add_hparams`` would add a
        second run.
        """
        writer = self._writer._get_file_writer()
        assert writer is not None
        for summary in hparams(dict(settings), dict(metrics)):
            writer.add_summary(summary)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value)

    def close(self) -> None:
        """Flush and close the event file."""
        try:
            self._writer.close()
        finally:
            threading.excepthook = self._hook

"""A figure as a picture."""

from __future__ import annotations

from io import BytesIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

DOTS_PER_INCH = 150


def png(figure: Figure) -> bytes:
    """The figure as a PNG file of ``DOTS_PER_INCH``.

    It is drawn once, where ``Figure.savefig`` lays a figure out, draws it for that, and draws it
    again.
    """
    figure.set_dpi(DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    file = BytesIO()
    imsave(file, canvas.buffer_rgba(), format="png", dpi=DOTS_PER_INCH)
    return file.getvalue()

"""A picture of a figure is what ``savefig`` makes of it."""

from io import BytesIO

import numpy as np
from PIL import Image

from gpx.runs.figures.picture import DOTS_PER_INCH, png
from gpx.runs.figures.predictions import predicted_against_observed


def test_a_figure_that_is_drawn_once_is_the_one_of_savefig():
    observed = np.linspace(-1.0, 1.0, 9)
    of = lambda: predicted_against_observed(observed, observed, observed - 1, observed + 1, "y")  # noqa: E731
    file = BytesIO()
    of().savefig(file, format="png", dpi=DOTS_PER_INCH)
    known, found = (np.asarray(Image.open(each)) for each in (file, BytesIO(png(of()))))
    np.testing.assert_array_equal(found, known)
    assert known.std() > 10.0

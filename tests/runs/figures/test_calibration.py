from types import SimpleNamespace

import pytest
import torch
from torch.distributions import Independent, Normal

from gpx.runs.figures.calibration import calibration_figures


def targets(y, *names):
    return SimpleNamespace(
        task="regression", num_test=len(y), test_y=y, target_name="strength", target_names=names
    )


def test_bars_and_curve_show_what_was_counted(tmp_path):
    levels = (torch.arange(1000).double() + 0.5) / 1000
    law = Normal(torch.zeros(1000).double(), torch.ones(1000).double())
    drawn = calibration_figures(targets(torch.special.ndtri(levels)), law, 4)
    assert list(drawn) == ["calibration"]
    left, right = drawn["calibration"].axes
    assert [bar.get_height() for bar in left.patches] == pytest.approx([1.0] * 20)
    asked, found = right.lines[0].get_data()
    assert found == pytest.approx(asked, abs=1e-3)
    assert right.get_title() == "coverage, off by 0.000 on average"
    drawn["calibration"].savefig(tmp_path / "figure.png")


@pytest.mark.parametrize(("rows", "bins"), [(15, 5), (120, 12), (1000, 20)])
def test_few_rows_have_few_bars(rows, bins):
    law = Normal(torch.zeros(rows), torch.ones(rows))
    drawn = calibration_figures(targets(torch.linspace(-2, 2, rows)), law, 4)
    assert len(drawn["calibration"].axes[0].patches) == bins


def test_several_outputs_are_numbered():
    law = Independent(Normal(torch.zeros(50, 3), torch.tensor([1.0, 4.0, 1.0])), 1)
    y = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    drawn = calibration_figures(targets(y, "a", "b", "c"), law, 2)
    assert list(drawn) == ["calibration_1", "calibration_2"]
    assert "smaller b" in drawn["calibration_2"].axes[0].get_xlabel()


def test_nothing_to_draw():
    assert calibration_figures(targets(torch.zeros(0)), Normal(torch.zeros(0), 1.0), 4) == {}

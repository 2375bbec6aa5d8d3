"""Which arguments are refused before Hydra reads them."""

import pytest

from gpx.errors import ConfigError
from gpx.options.composition import check_choices


def test_choices_of_a_sweep_may_be_given_as_a_pattern():
    check_choices(["kernel=glob(matern*)", "approx=glob([s*,cglb],exclude=ski)"])
    with pytest.raises(ConfigError, match="there is no kernel=1"):
        check_choices(["kernel=1"])

"""Options of the small commands."""

import pytest

from gpx.commands.named_values import read_options
from gpx.errors import ConfigError


def read(*arguments):
    return read_options(arguments, ("run", "points"), required=("run",), script="python some.py")


def test_names_and_values():
    assert read("run=a=b", "points=c") == {"run": "a=b", "points": "c"}


def test_values_may_be_quoted_as_those_of_training():
    assert read("run='a b'", 'points="c"') == {"run": "a b", "points": "c"}
    assert read("run=a'b'", "points='") == {"run": "a'b'", "points": "'"}
    assert read("run='a','b'") == {"run": "'a','b'"}
    with pytest.raises(ConfigError, match="run= has no value"):
        read("run=''")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rum=a"], r"'rum=a'; did you mean run=\?.*some.py --help"),
        (["run"], r"run= has no value; write run=\.\.\. \(python some.py --help"),
        (["run="], "run= has no value"),
        (["--run", "a"], r"'--run'; did you mean run=\?"),
        (["zzz=1"], "valid are: run, points"),
        (["points=c"], "run= is missing"),
        (["run=a", "points=c", "run=b"], "run= is given twice: run=a and run=b"),
        (["run=a", "run=a"], "run= is given twice"),
    ],
)
def test_every_mistake_is_one_line(arguments, said):
    with pytest.raises(ConfigError, match=said):
        read(*arguments)

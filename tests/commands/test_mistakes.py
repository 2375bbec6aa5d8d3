"""What the user can mend, in one line with exit status 2; what is a fault of gpx, in full."""

import pytest

from gpx.commands.mistakes import mistakes_in_one_line
from gpx.errors import ConfigError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("rank=80 is\nabove the 54 points"), "error: rank=80 is above the 54 points\n"),
        (OSError(28, "No space left on device", "out.csv"), "out.csv: No space left on device\n"),
        (OSError("gone"), "error: file: gone\n"),
    ],
)
def test_mistakes_end_the_process_in_one_line(error, said, capsys):
    with pytest.raises(SystemExit) as stopped, mistakes_in_one_line():
        raise error
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(said)


def test_nothing_is_said_where_nothing_is_wrong(capsys):
    with mistakes_in_one_line():
        pass
    assert capsys.readouterr().err == ""


def test_a_fault_of_the_program_is_not_hidden():
    with pytest.raises(ZeroDivisionError), mistakes_in_one_line():
        raise ZeroDivisionError

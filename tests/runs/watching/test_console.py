import io
import warnings

import pytest

from gpx.runs.watching.console import Console, print_error, warnings_as_lines
from gpx.training.progress import Progress


def progress(step, max_steps=10):
    return Progress(step, max_steps, -1.25, {}, {}, 0.012, 3.0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines_are_thinned_but_first_and_last_stay():
    out = io.StringIO()
    console = Console(seconds=1000.0, stream=out)
    for step in range(1, 11):
        console.progress(progress(step), None)
    console.close()
    lines = out.getvalue().splitlines()
    assert lines == [
        "step 1/10  evidence/point -1.2500  12 ms/step  3 s",
        "step 10/10  evidence/point -1.2500  12 ms/step  3 s",
    ]


def test_huge_numbers_have_a_power_of_ten():
    out = io.StringIO()
    console = Console(stream=out)
    console.progress(Progress(10, 10, -7.8796e27, {}, {}, 0.012, 3.0), None)
    console.metrics(10, {"rmse": 2.5e19, "mnlp": 3.58})
    assert out.getvalue().splitlines() == [
        "step 10/10  evidence/point -7.88e+27  12 ms/step  3 s",
        "step 10  test: rmse 2.5e+19  mnlp 3.5800",
    ]


def test_a_terminal_gets_a_bar_and_lines_above_it():
    out = Terminal()
    console = Console(stream=out)
    console.progress(progress(5), None)
    console.metrics(5, {"rmse": 0.5, "other": 1.0})
    console.progress(progress(10), None)
    console.close()
    text = out.getvalue()
    assert "10/10" in text
    assert "evidence/point -1.2500" in text
    assert "step 5  test: rmse 0.5000" in text
    assert "other" not in text


def test_a_resumed_bar_starts_where_the_run_does():
    out = Terminal()
    console = Console(stream=out)
    console.progress(progress(7), None)
    console.close()
    assert "7/10" in out.getvalue()


class Gone(io.StringIO):
    """A terminal that has been closed after some characters."""

    def __init__(self, characters, terminal):
        super().__init__()
        self.left, self.terminal = characters, terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.left -= len(text)
        if self.left < 0:
            raise OSError(5, "Input/output error")
        return super().write(text)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("characters", [0, 80])
def test_a_closed_terminal_silences_and_ends_nothing(terminal, characters):
    out = Gone(characters, terminal)
    console = Console(seconds=0.0, stream=out)
    for step in range(1, 11):
        console.progress(progress(step), None)
        console.say("a line of its own")
        console.metrics(step, {"rmse": 0.5})
    console.close()
    assert out.left < 0
    assert len(out.getvalue()) <= characters


def test_an_error_is_one_line_of_plain_characters(capsys):
    print_error(ValueError("no\ncolumn \x1b]0;title\x07'depth é'\t\r"))
    assert capsys.readouterr().err == "error: no column ?]0;title?'depth é'\n"


def test_warnings_are_one_line_without_source(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings_as_lines()
        warnings.warn("variances are\n  wide", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: variances are wide\n"

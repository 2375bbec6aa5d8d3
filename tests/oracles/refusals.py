"""Commands that end with one line about a mistake of whoever typed them."""

import pytest


def refused(capsys, command, *arguments):
    """What the command says on standard error: status 2, and one line that begins with error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        command(list(arguments))
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
    return said

"""The entry of a command: its page of help, and mistakes of the user in one line each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from omegaconf.errors import OmegaConfBaseException

from gpx.commands import HELP, USAGE_ERROR
from gpx.errors import GPXError
from gpx.installation import command
from gpx.runs.watching.console import print_error, warnings_as_lines


def answered(
    name: str, usage: str, work: Callable[[list[str]], None], arguments: list[str] | None
) -> None:
    """Run a command; mistakes give one line and exit status 2.

    Args:
        name: of the command.
        usage: printed if help is asked for, or nothing; ``{command}`` in it is how to call it.
        work: does what the arguments ask.
        arguments: of the command line; None: those of this process.
    """
    warnings_as_lines()
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or {*HELP} & {*arguments}:
        print(usage.format(command=command(name)))
        return
    with mistakes_in_one_line():
        work(arguments)


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Print errors of gpx, of options and of files in one line, and exit with status 2."""
    try:
        yield
    except (GPXError, OmegaConfBaseException) as error:
        print_error(error)
    except OSError as error:
        print_error(describe_file_error(error))
    else:
        return
    sys.exit(USAGE_ERROR)


def describe_file_error(error: OSError) -> str:
    """The file and what is wrong, such as a full disk or a missing permission."""
    return f"{error.filename or 'file'}: {error.strerror or error}"

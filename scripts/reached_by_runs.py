"""Coverage of operators and linear algebra by runs of the command line.

Trains, predicts, draws and diagnoses small runs of every approximation and its main choices, and
reports the share of statements of gpx/operators and gpx/linalg that were executed, and which
approximations made each operator:

    pip install coverage
    python scripts/reached_by_runs.py                  # all runs, about seven minutes
    python scripts/reached_by_runs.py --lines levinson # also lines not reached in such files
    python scripts/reached_by_runs.py --functions      # also functions that no run has entered
    python scripts/reached_by_runs.py --folders runs methods --functions

Statements that such runs cannot or need not reach are counted apart, by kind:

- errors: blocks that end by raising one;
- interface: methods of an operator or preconditioner that override those of linear_operator or of
  the room's base classes, and rules for combinations of operators: each class answers all of them,
  whatever models ask for;
- users, GPU, processes: modules, classes and functions whose docstring says ``For users of the
  package``, ``For a GPU only`` or ``For several processes only``;

each with the functions and classes that nothing else in gpx names. What is left was missed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import coverage
import numpy as np
from small_runs import RUNS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("operators", "linalg")

SMALL = "trainer.max_steps=4 trainer.tensorboard=false trainer.figures=false "
SMALL += "trainer.baselines=false"
START = "init.num_points=100 init.max_evaluations=4"
"""For all runs except those on grids, which have another init."""
CERTIFIED = ("exact", "sgpr", "cglb", "svgp")


def train_and_use(name: str, options: str, folder: Path) -> str:
    """Train, predict, draw and, if the method has one, compute the certificate."""
    from gpx.commands.diagnose import main as diagnose
    from gpx.commands.predict import main as predict
    from gpx.errors import GPXError
    from gpx.options.composition import composed
    from gpx.runs import RunFolder, load, run

    target = RunFolder(folder / name.replace(" ", "_"))
    settings = SMALL if "grid" in name or "init=constants" in options else f"{SMALL} {START}"
    given = f"{settings} {options}".split()
    try:
        run(composed(given), target, lambda first, last: composed([*first, *given, *last]))
        predictor = load(target.path)
        inputs = np.zeros((100, len(predictor.input_names)))
        inputs[:, 0] = np.linspace(-1.0, 1.0, 100)
        table = target.path / "new.csv"
        np.savetxt(table, inputs, delimiter=",")
        predict([f"run={target.path}", f"input={table}", f"output={target.path / 'out.csv'}"])
        for use in (
            lambda: predictor.latent(inputs[:1]),  # one row, which some methods compute otherwise
            lambda: predictor.sample(inputs, 2),
            lambda: predictor.covariance(inputs),
        ):
            with contextlib.suppress(GPXError):  # not every method has draws and covariances
                use()
        if name in CERTIFIED:
            diagnose([f"run={target.path}"])
            diagnose([f"run={target.path}", "products=false"])
    except GPXError as error:
        return f"refused: {error}"
    return "done"


@contextlib.contextmanager
def noted_operators(made: dict[str, set[str]], running: list[str]) -> Iterator[None]:
    """Record in ``made`` which runs, the last of ``running``, make each public operator."""
    import gpx.operators
    from gpx.operators.structured import Structured

    original = Structured.__init__

    def noting(self: Structured, *args: Any, **kwargs: Any) -> None:
        if type(self).__name__ in gpx.operators.__all__:
            made[type(self).__name__].add(running[-1])
        original(self, *args, **kwargs)

    Structured.__init__ = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        Structured.__init__ = original  # type: ignore[method-assign]


MARKS = {
    "users": "For users of the package",
    "GPU": "For a GPU only",
    "processes": "For several processes only",
}
"""Kind of statements that are counted apart -> sentence in their docstring."""

Lines = dict[Path, set[int]]
Definition = ast.FunctionDef | ast.ClassDef


def definitions(tree: ast.Module) -> list[Definition]:
    return [node for node in ast.walk(tree) if isinstance(node, Definition)]


def lines_of(node: Definition) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def error_lines(tree: ast.Module) -> set[int]:
    """Line numbers of statements in blocks that end by raising an error."""
    found: set[int] = set()
    for node in ast.walk(tree):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list) and block and isinstance(block[-1], ast.Raise):
                for statement in block:
                    found |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return found


def marked_lines(tree: ast.Module, mark: str) -> set[int]:
    """Line numbers of definitions, or of a whole module, whose docstring has the mark."""

    def has_mark(node: ast.Module | Definition) -> bool:
        return mark in " ".join((ast.get_docstring(node) or "").split())

    if has_mark(tree):
        return set(range(1, max(node.end_lineno or 1 for node in tree.body) + 1))
    return set().union(*(lines_of(node) for node in definitions(tree) if has_mark(node)))


def interface_lines(tree: ast.Module) -> set[int]:
    """Line numbers of methods of operators that override a base class, and of rules."""
    from gpx.linalg import Preconditioner
    from gpx.operators.structured import Structured

    bases = (*Structured.__mro__[:-1], Preconditioner)
    inherited = {name for base in bases for name in vars(base)} - {"__init__"}
    found: set[int] = set()
    for node in definitions(tree):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= set().union(*(lines_of(each) for each in methods if each.name in inherited))
        elif any(ast.unparse(each).startswith("rule(") for each in node.decorator_list):
            found |= lines_of(node)
    return found


def counted_apart(folders: Sequence[str]) -> dict[str, Lines]:
    """Kind -> file -> line numbers, with what only such lines of gpx name."""
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "gpx").rglob("*.py"))}
    kinds: dict[str, Lines] = {kind: {} for kind in ("errors", "interface", *MARKS)}
    named: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path, tree in trees.items():
        kinds["errors"][path] = error_lines(tree)
        inside = {"operators", "preconditioners"} & set(path.parts)
        kinds["interface"][path] = interface_lines(tree) if inside else set()
        for kind, mark in MARKS.items():
            kinds[kind][path] = marked_lines(tree, mark)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name | ast.Attribute):
                name = node.id if isinstance(node, ast.Name) else node.attr
                named[name].append((path, node.lineno))
    left = [
        (path, node)
        for path, tree in trees.items()
        if path.relative_to(ROOT / "gpx").parts[0] in folders
        for node in definitions(tree)
        if not node.name.startswith("__")
    ]
    before = -1
    while before != len(left):
        before = len(left)
        for path, node in list(left):
            own = lines_of(node)
            uses = [(p, n) for p, n in named[node.name] if p != path or n not in own]
            if node.name.startswith("_"):  # private names recur in other files
                uses = [(p, n) for p, n in uses if p == path] or uses
            kinds_of = [{kind for kind in kinds if n in kinds[kind][p]} for p, n in uses]
            if kinds_of and all(kinds_of):
                kinds[sorted(kinds_of[0])[0]][path] |= own
                left.remove((path, node))
    return kinds


def never_entered(path: Path, missed: set[int]) -> list[str]:
    """Functions of a file that were never entered, with numbers of lines."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = [s.lineno for s in node.body if not isinstance(s, ast.Expr | ast.Pass)]
            if body and missed.issuperset(body):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                found.append(f"{node.name} ({lines} lines from {node.lineno})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", nargs="*", default=None, help="files whose missed lines to show")
    parser.add_argument("--functions", action="store_true", help="name functions never entered")
    parser.add_argument("--folders", nargs="*", default=FOLDERS, help="folders of gpx to measure")
    arguments = parser.parse_args()
    folders = [str(ROOT / "gpx" / f / "*") for f in arguments.folders]
    measured = coverage.Coverage(
        data_file=None,
        include=folders,
        concurrency="thread",
    )
    measured.start()
    made: dict[str, set[str]] = defaultdict(set)
    running = [""]
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        noted_operators(made, running),
    ):
        warnings.simplefilter("ignore")
        rows = Path(folder) / "rows.npy"
        x = np.random.default_rng(0).normal(size=(3000, 2))
        np.save(rows, np.column_stack([x, np.sin(x).sum(1)]))
        streamed = f"data=stream data.path={rows} approx.num_inducing=30"
        streams = {
            "svgp stream": f"approx=svgp {streamed}",
            "swsgp stream": f"approx=swsgp approx.num_neighbours=8 {streamed}",
        }
        every = {**RUNS, **streams}
        named = {o.split("approx=")[1].split()[0] for o in every.values()}
        forgotten = {path.stem for path in (ROOT / "configs" / "approx").glob("*.yaml")} - named
        print(f"without a run: {', '.join(sorted(forgotten)) or 'no approximation'}")
        for name, options in every.items():
            running.append(options.split("approx=")[1].split()[0])
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                outcome = train_and_use(name, options, Path(folder))
            print(f"{name}: {outcome}", flush=True)
    measured.stop()
    apart = counted_apart(arguments.folders)
    for part in arguments.folders:
        total = reached = 0
        without: dict[str, int] = defaultdict(int)
        for path in sorted((ROOT / "gpx" / part).rglob("*.py")):
            _, statements, _, missed, _ = measured.analysis2(str(path))
            hit = len(statements) - len(missed)
            total, reached = total + len(statements), reached + hit
            left = set(missed)
            for kind, lines in apart.items():
                without[kind] += len(left & lines[path])
                left -= lines[path]
            print(
                f"{hit:5d} of {len(statements):5d}, {len(left):3d} missed  {path.relative_to(ROOT)}"
            )
            if arguments.lines is not None and any(word in str(path) for word in arguments.lines):
                print(f"    not reached: {sorted(left)}")
            if arguments.functions:
                for function in never_entered(path, left):
                    print(f"    never entered: {function}")
        kinds = ", ".join(f"{count} of {kind}" for kind, count in without.items() if count)
        print(
            f"{part}: {reached} of {total} statements, {reached / total:.0%}; "
            f"{reached / (total - sum(without.values())):.0%} without {kinds}"
        )
    for operator, names in sorted(made.items()):
        print(f"{operator}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()

"""Find small changes of the source that no test notices, by testing one change at a time.

    python scripts/mutate.py gpx/objectives gpx/variational --budget 600 --seed 1
    python scripts/mutate.py gpx/linalg/trace.py --tests tests/linalg tests/objectives
    python scripts/mutate.py gpx/linalg --again outputs/mutants/survivors.json

Sources are files or folders. Tests default to the folders of the same names under tests/. They are
collected once, in one process with torch already loaded; a first pass records which lines of the
sources each test executes and how long it takes. Then, for each change (a mutant), a forked child
replaces the code of the function and runs the tests that execute the changed line, those in the
test file of the same name first, until one fails. The order of the mutants depends on the seed
only, so a larger budget continues a smaller one. The budget is processor time.

Mutants that survive are written to outputs/mutants/survivors.md (to read) and survivors.json (for
--again). List a mutant that no test can detect in scripts/equivalent_mutants.toml, with the reason;
it is then not reported again. Code that runs in another process, or during import, is not tested.
"Without effect" are inserted calls that could not change any value in any test, such as a detach()
where no test needs a gradient. Needs Linux and Python 3.11.
"""

from __future__ import annotations

import argparse
import builtins
import gc
import hashlib
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import tomllib

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a forked child inherits no worker threads

import pytest
from mutations import ATTACH, DETACH, SCALE, Mutant, attached, detached, effect, mutants_of, scaled

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
KILLED, TIMEOUT, SURVIVED = "killed", "ended by its limit or a signal", "survived"
UNSEEN, UNREACHED, EQUAL = "without effect", "not executed", "equivalent"


@dataclass
class Coverage:
    """Processor seconds of each test, and the lines of each source that it executes.

    Modules are those that the tests import while they run: a second of every mutant, if each child
    had to import them again.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)

    def merge(self, other: dict[str, Any]) -> None:
        self.seconds |= other["seconds"]
        self.lines |= other["lines"]
        self.failed += other["failed"]
        self.modules += other["modules"]


def in_child(work: Callable[[], Any], cpu_seconds: float) -> tuple[Any, float]:
    """Result of ``work`` in a forked child (None if it failed), and its processor time."""
    before = children_seconds()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.setpgid(0, 0)
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            limit_processor_time(cpu_seconds)
            with os.fdopen(writing, "w") as pipe:
                json.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    text = b""
    end = time.monotonic() + 60 + 10 * cpu_seconds  # a child that sleeps spends no processor time
    while (left := end - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
        part = os.read(reading, 1 << 20)
        if not part:
            break
        text += part
    os.close(reading)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        result = json.loads(text)
    except json.JSONDecodeError:
        result = None
    return result, children_seconds() - before


def limit_processor_time(seconds: float) -> None:
    """End this process after ``seconds`` more of processor time."""
    limit = int(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Mutation:
    """Pytest plugin that runs the collected tests on every mutant."""

    def __init__(self, options: argparse.Namespace, sources: list[Path], folder: Path) -> None:
        self.options, self.folder = options, folder
        self.trees, self.mutants = {}, []
        for path in sources:
            tree, mutants = mutants_of(path)
            self.trees[path] = tree
            self.mutants += mutants
        self.reasons = known_equivalents()
        self.results: list[tuple[Mutant, str, str]] = []
        self.failed_test = ""
        self.stopped = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed_test = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed or not session.items:
            sys.exit("mutate: the tests could not be read; run pytest on them first")
        self.items = {item.nodeid: item for item in session.items}
        coverage = self.coverage()
        for test in coverage.failed:
            print(f"fails without any mutant, left out: {test}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in dict.fromkeys(coverage.modules):
                with suppress(Exception):
                    importlib.import_module(name)
        self.functions = live_functions(set(map(str, self.trees)))
        if not self.functions:
            sys.exit("mutate: the tests import none of the sources (another copy of the package?)")
        gc.collect()
        gc.freeze()  # pages shared with the children stay shared
        self.run(coverage)
        return True

    def tests_of_files(self) -> dict[Path, list[str]]:
        files: dict[Path, list[str]] = {}
        for name, item in self.items.items():
            files.setdefault(item.path, []).append(name)
        return files

    def coverage(self) -> Coverage:
        """Lines and times of all tests, one child per test file; cached until a file changes."""
        kept, coverage = self.folder / "coverage", Coverage()
        kept.mkdir(parents=True, exist_ok=True)
        sources = b"".join(path.read_bytes() for path in self.trees)
        for path, names in self.tests_of_files().items():
            digest = hashlib.sha1(path.read_bytes() + sources + "\n".join(names).encode())
            file = kept / f"{path.stem}-{digest.hexdigest()[:16]}.json"
            if not file.exists():
                found, seconds = in_child(partial(self.trace, names), 600)
                if found is None:
                    sys.exit(f"mutate: the tests of {path} did not end; leave the file out")
                print(f"{path.name}: {len(names)} tests, {seconds:.1f} s", flush=True)
                file.write_text(json.dumps(found))
            coverage.merge(json.loads(file.read_text()))
        return coverage

    def trace(self, names: list[str]) -> dict[str, Any]:
        wanted = {str(path) for path in self.trees}
        found = Coverage()
        hits: dict[str, set[int]] = {}
        imported = set(sys.modules)

        def line(frame: FrameType, event: str, _: Any) -> Any:
            hits[frame.f_code.co_filename].add(frame.f_lineno)
            return line

        def call(frame: FrameType, event: str, _: Any) -> Any:
            return line(frame, event, None) if frame.f_code.co_filename in wanted else None

        for name in names:
            hits = {path: set() for path in wanted}
            self.failed_test = ""
            start = time.process_time()
            sys.settrace(call)
            self.run_test(name, None)
            sys.settrace(None)
            found.seconds[name] = time.process_time() - start
            found.lines[name] = {path: sorted(lines) for path, lines in hits.items() if lines}
            if self.failed_test:
                found.failed.append(name)
        found.modules = [name for name in sys.modules if name not in imported]
        return vars(found)

    def run_test(self, name: str, following: str | None) -> None:
        item = self.items[name]
        item.config.hook.pytest_runtest_protocol(
            item=item, nextitem=None if following is None else self.items[following]
        )

    def tests_for(self, mutant: Mutant, coverage: Coverage) -> list[str]:
        """Tests that execute the changed lines: first those of the same name, then the fastest."""
        broken, path, stem = set(coverage.failed), str(mutant.path), mutant.path.stem
        names = [
            name
            for name, lines in coverage.lines.items()
            if name not in broken and not set(mutant.lines).isdisjoint(lines.get(path, ()))
        ]
        own = f"test_{stem}.py"
        names.sort(key=lambda n: (self.items[n].path.name != own, coverage.seconds[n]))
        total, chosen = 0.0, []
        for name in names:
            total += coverage.seconds[name]
            if chosen and total > self.options.test_seconds:
                break
            chosen.append(name)
        return chosen

    def run(self, coverage: Coverage) -> None:
        order = sorted(
            self.mutants,
            key=lambda m: hashlib.sha1(f"{self.options.seed} {m.identity}".encode()).digest(),
        )
        if self.options.again:
            again = {entry["id"] for entry in json.loads(self.options.again.read_text())}
            order = [mutant for mutant in order if mutant.identity in again]
        if self.options.kinds:
            order = [mutant for mutant in order if mutant.kind in self.options.kinds]
        spent = 0.0
        signal.signal(signal.SIGINT, self.stop)
        for count, mutant in enumerate(order):
            if spent > self.options.budget or self.stopped:
                break
            tests = self.tests_for(mutant, coverage)
            if mutant.identity in self.reasons:
                result: Any = (EQUAL, "")
            elif not tests:
                result = (UNREACHED, "")
            else:
                limits = {name: 3 + 3 * coverage.seconds[name] for name in tests}
                work = partial(self.judge, mutant, limits)
                result, seconds = in_child(work, sum(limits.values()))
                spent += seconds
                result = result or (TIMEOUT, "")
            self.results.append((mutant, *result))
            if result[0] == SURVIVED:
                print(f"[{count}, {spent:.0f} s] {described(mutant)}", flush=True)
        self.report(len(order), spent)

    def stop(self, *_: Any) -> None:
        """Handle Ctrl-C: stop after the current mutant, and report those tested so far."""
        self.stopped = True

    def judge(self, mutant: Mutant, tests: dict[str, float]) -> tuple[str, str]:
        replaced = False
        try:
            for code in with_inner(mutant.code(self.trees[mutant.path])):
                key = (str(mutant.path), code.co_qualname, code.co_firstlineno)
                for function in self.functions.get(key, []):
                    function.__code__ = code
                    replaced = True
        except ValueError:  # such as an edit that took away the only use of super()
            return KILLED, "needs another closure"
        if not replaced:
            return UNREACHED, ""
        setattr(builtins, DETACH, detached)
        setattr(builtins, ATTACH, attached)
        setattr(builtins, SCALE, scaled)
        for name, following in zip(tests, [*list(tests)[1:], None], strict=True):
            limit_processor_time(tests[name])
            self.run_test(name, following)
            if self.failed_test:
                return KILLED, self.failed_test
        return (UNSEEN if mutant.needs_effect and not effect.seen else SURVIVED), f"{len(tests)}"

    def report(self, total: int, spent: float) -> None:
        counts = Counter(status for _, status, _ in self.results)
        summary = (
            f"{len(self.results)} of {total} mutants (seed {self.options.seed}, {spent:.0f} s of "
            f"processor time): " + ", ".join(f"{n} {status}" for status, n in counts.most_common())
        )
        lines = [f"# Mutants that no test notices\n\n{summary}.\n"]
        rows = []
        for status, heading in (
            (SURVIVED, "Survived"),
            (UNREACHED, "In lines that none of the tests executes"),
        ):
            found = [(m, note) for m, s, note in self.results if s == status]
            found.sort(key=lambda row: (str(row[0].path), row[0].lines.start))
            lines += [f"\n## {heading}\n"] if found else []
            for mutant, note in found:
                lines.append(f"- {described(mutant)}" + (f" ({note} tests)" if note else ""))
                rows.append(
                    {
                        "id": mutant.identity,
                        "status": status,
                        "at": f"{mutant.path}:{mutant.lines.start}",
                        "original": mutant.original,
                        "mutant": mutant.changed,
                    }
                )
        stems = {path.stem for path in self.trees}
        made = {mutant.identity for mutant in self.mutants}
        for identity, text in self.reasons.items():
            if text.split(".")[0] in stems and identity not in made:
                lines.append(
                    f"\nRemove from equivalent_mutants.toml, no longer generated: {identity} {text}"
                )
        (self.folder / "survivors.md").write_text("\n".join(lines) + "\n")
        (self.folder / "survivors.json").write_text(json.dumps(rows, indent=1))
        print(f"{summary}\n{self.folder / 'survivors.md'}")


def described(mutant: Mutant) -> str:
    where = os.path.relpath(mutant.path)
    name = f"{mutant.path.stem}.{mutant.function}"
    text = f"{where}:{mutant.lines.start} `{mutant.identity} {name}` {mutant.kind}"
    return f"{text}\n    {mutant.original}\n    -> {mutant.changed}"


def known_equivalents() -> dict[str, str]:
    """Identity -> function of the mutants in equivalent_mutants.toml."""
    if not EQUIVALENT.exists():
        return {}
    groups = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    entries = [entry.partition(" ") for group in groups for entry in group["mutants"]]
    return {identity: text for identity, _, text in entries}


def with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of its inner functions, which a decorator may have returned."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_name.startswith("<"):
            yield from with_inner(constant)


def live_functions(paths: set[str]) -> dict[tuple[str, str, int], list[FunctionType]]:
    """Functions of the sources in this process, including wrapped ones."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in paths:
            code = thing.__code__
            key = (code.co_filename, code.co_qualname, code.co_firstlineno)
            found.setdefault(key, []).append(thing)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", type=Path, help="files or folders of the package")
    parser.add_argument("--tests", nargs="+", type=Path, help="test files or folders")
    parser.add_argument("--budget", type=float, default=600, help="seconds of processor time")
    parser.add_argument("--seed", type=int, default=0, help="decides the order of the mutants")
    parser.add_argument(
        "--kinds", nargs="+", help="only mutants of these kinds, such as operator or 'detach in'"
    )
    parser.add_argument("--again", type=Path, help="only the mutants in a survivors.json")
    parser.add_argument(
        "--test-seconds", type=float, default=10, help="largest total time of the tests of a mutant"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/mutants"), help="folder of the report"
    )
    options = parser.parse_args()
    sources = []
    for source in options.sources:
        files = [source] if source.is_file() else sorted(source.rglob("*.py"))
        if not files:
            parser.error(f"{source} is neither a Python file nor a folder with any")
        sources += [file.resolve() for file in files]
    tests = options.tests or sorted({mirrored(path) for path in options.sources})
    sys.path.insert(0, os.getcwd())  # this copy of the package, not an installed one
    plugin = Mutation(options, sources, options.out)
    arguments = ["-q", "-q", "-s", "-n", "0", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    arguments += map(str, tests)
    status = pytest.main(arguments, plugins=[plugin])
    return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


def mirrored(source: Path) -> Path:
    """The folder of tests for a file or folder of the package."""
    folder = source.parent if source.is_file() else source
    tests = Path("tests", *folder.parts[1:])
    if not tests.exists():
        sys.exit(f"mutate: {source} has no {tests}; name its tests with --tests")
    return tests


if __name__ == "__main__":
    sys.exit(main())

"""A module imports only from floors below it; methods do not import each other; no circles."""

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "gpx"

FLOORS = [
    {"errors", "atomic_file", "cache_folder", "lazy_rows", "installation", "warned_line"},
    {"shown_values"},
    {"constants", "constraints", "constructed", "data_sized", "flat_parameters", "tensor_checks"},
    {"bounds", "priors"},
    {"linalg"},
    {"backends"},
    {"operators"},
    {"kernels", "means", "likelihoods"},
    {"bases", "inducing", "sampling"},
    {"methods.base"},
    {"inference"},
    {
        "methods.classification",
        "methods.exact",
        "methods.coregional",
        "methods.independent",
        "methods.derivatives",
        "methods.sparse",
        "methods.weight_space",
        "methods.grid",
        "methods.eigenfunctions",
        "methods.deep",
        "methods.reweighted",
        "methods.ski",
        "methods.nearest",
        "methods.sparse_spectrum",
        "methods.experts",
        "methods.direct",
    },
    {"models", "objectives"},
    {"diagnostics", "data", "calibration"},
    {"metrics"},
    {"options"},
    {"training"},
    {"runs"},
    {"botorch", "doctor", "sklearn", "thompson"},
    {"commands"},
    {"__main__"},
]
"""From the ground up; rooms of one floor do not see each other."""

MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def room(module):
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[:1] == ["methods"] else ".".join(parts[:1])


def floor(name):
    found = [number for number, rooms in enumerate(FLOORS) if name in rooms]
    assert found, f"gpx/{name.replace('.', '/')} stands on no floor: add it to FLOORS"
    return found[0]


@functools.cache
def imports(path):
    """(module, only for the type checker or inside a function?) of every import of gpx."""
    tree = ast.parse(path.read_text())
    inner = {
        id(statement)
        for block in ast.walk(tree)
        if isinstance(block, (ast.If, ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in ast.walk(block)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [
                f"{node.module}.{alias.name}"
                if f"{node.module}.{alias.name}" in MODULES
                else node.module
                for alias in node.names
            ]
        else:
            continue
        found += [(name, id(node) in inner) for name in names if name.split(".")[0] == "gpx"]
    return found


@pytest.mark.parametrize("module", sorted(m for m in MODULES if room(m) not in ("", "methods")))
def test_a_module_imports_only_from_floors_below(module):
    here = room(module)
    for imported, _ in imports(MODULES[module]):
        there = room(imported)
        if there in ("", here):
            continue
        assert floor(there) < floor(here), f"{module} imports {imported}, which is not below it"


def test_no_module_imports_itself_through_others():
    graph = {
        module: {name for name, late in imports(path) if not late and name in MODULES}
        for module, path in MODULES.items()
    }
    done, active = set(), []

    def visit(module):
        if module in active:
            raise AssertionError(" -> ".join([*active[active.index(module) :], module]))
        if module not in done:
            active.append(module)
            for name in sorted(graph[module]):
                visit(name)
            active.pop()
            done.add(module)

    for module in graph:
        visit(module)


def test_the_checker_type_imports_close_no_circle_between_rooms():
    edges = {
        (room(module), room(name))
        for module, path in MODULES.items()
        for name, _ in imports(path)
        if room(name) not in ("", room(module)) and room(module)
    }
    assert not {(a, b) for a, b in edges if (b, a) in edges}

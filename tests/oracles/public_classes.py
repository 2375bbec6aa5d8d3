"""The classes of a contract that a package exports: each has to be in the list of its suite."""

import inspect
from types import ModuleType


def public_classes(module: ModuleType, base: type, abstract: bool = False) -> set[str]:
    """Names in ``module.__all__`` of subclasses of ``base`` that can be made (or all of them)."""
    named = {name: getattr(module, name) for name in module.__all__}
    return {
        name
        for name, found in named.items()
        if inspect.isclass(found)
        and issubclass(found, base)
        and (abstract or not inspect.isabstract(found))
    }

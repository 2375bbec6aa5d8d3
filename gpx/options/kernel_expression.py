"""Sums, products and multiples of kernels by name: ``kernel='rbf*periodic + 2*linear'``.

``matern32 per input`` is a sum of kernels, each of one input; how many there are is known when the
data are loaded (``with_terms_per_input``).

An expression becomes a config like those in configs/kernel, stored where Hydra finds it as a choice
of ``kernel=``. Its options can be set like any others (``kernel.kernels.0.lengthscale=2``), and
config.yaml holds the kernel that was built.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from gpx.errors import ConfigError
from gpx.options.build import target_of
from gpx.options.types import check_option_types
from gpx.tensor_checks import is_number

GROUP = "kernel"
SUM = "gpx.kernels.Sum"
EXAMPLE = "kernel='rbf*periodic + linear'"
AMPLITUDES = ("outputscale", "slope_variance", "variance", "weight")
"""Options that scale a kernel."""
SWEEPS = ("choice", "glob", "range", "interval", "shuffle", "sort", "tag")
"""Functions of Hydra for sweeps."""
MAX_WRITTEN = 6
"""Most factors of a power that a message writes out; of larger ones it shows two."""
PER_INPUT = "per_input"
"""Option of the config of a sum whose only term stands for one term of each input."""
COUNTS = ("ard_num_dims", "num_inputs")
"""Options of kernels that hold the number of inputs."""
WORDS = {"null": None, "true": True, "false": False}


def with_kernel_expressions(arguments: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The options, with expressions of ``kernel=`` replaced by names of stored configs.

    Args:
        arguments: as on the command line, including sweeps such as ``kernel=rbf,rbf*periodic``.
        folders: of config groups; of several ``kernel/NAME.yaml`` the last folder's is used.

    Raises:
        ConfigError: an expression that cannot be read, or a kernel or option that does not exist.
    """
    return [_stored(argument, folders) for argument in arguments]


def _stored(argument: str, folders: Sequence[Path]) -> str:
    group, equals, text = argument.partition("=")
    if group != GROUP or not equals:
        return argument
    choices = [_unquoted(choice) for choice in _split_at_commas(_unquoted(text))]
    if not any(_is_expression(choice, folders) for choice in choices):
        return argument
    return f"{GROUP}=" + ",".join(
        f"'{_store(choice, folders)}'" if _is_expression(choice, folders) else choice
        for choice in choices
    )


def _is_expression(text: str, folders: Sequence[Path]) -> bool:
    """Whether it is more than a name, and not a list or a function of Hydra.

    A name with a slash is that of a config in a folder, unless a kernel is divided.
    """
    divided, slash, _ = text.partition("/")
    if slash and any((folder / GROUP / f"{divided}.yaml").is_file() for folder in folders):
        return not any((folder / GROUP / divided).is_dir() for folder in folders)
    return bool(re.search(r"[+*()\s]", text)) and not re.match(
        rf"\[|\{{|({'|'.join(SWEEPS)})\(", text
    )


def _unquoted(text: str) -> str:
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1].strip() if quoted else text


def _split_at_commas(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def kernel_node(text: str, folders: Sequence[Path]) -> dict[str, Any]:
    """The config of the kernel for an expression or a name.

    Raises:
        ConfigError: it cannot be read, or a name in it does not exist.
    """
    return _Reader(text, folders).node()


def _store(text: str, folders: Sequence[Path]) -> str:
    """Store the config of an expression for Hydra, and return its name there."""
    name = re.sub(r"\s+", "", text).replace("'", "").replace('"', "")
    node, store = kernel_node(text, folders), ConfigStore.instance()
    known = store.repo.get(GROUP, {}).get(f"{name}.yaml")
    if known is None or known.node != node:  # the same one is left, for ``kept_configs``
        store.store(group=GROUP, name=name, node=node)
    return name


class _Reader:
    """Reads one expression.

    Args:
        text: the expression.
        folders: of config groups.
    """

    def __init__(self, text: str, folders: Sequence[Path]) -> None:
        self.text = text
        files = [file for folder in folders for file in sorted(folder.glob("kernel/*.yaml"))]
        # kernel=auto cannot be part of an expression
        self.files = {file.stem: file for file in files if file.stem != "auto"}

    def node(self) -> dict[str, Any]:
        """The config of the kernel.

        Raises:
            ConfigError: the expression cannot be read, or a name in it does not exist.
        """
        try:
            # a subscript binds as tightly as "per input" is meant: to the kernel before it
            text = re.sub(r"\s+per\s+input\b", f"[{PER_INPUT}]", self.text)
            return self._node(ast.parse(text, mode="eval").body)
        except SyntaxError:
            raise self._unreadable("a kernel or a bracket is missing") from None
        except (RecursionError, MemoryError):
            raise self._unreadable("it is too long") from None

    def _node(self, tree: ast.expr) -> dict[str, Any]:
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
            return sum_of([self._node(part) for part in self._parts(tree, ast.Add)])
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
            parts = self._parts(tree, ast.Mult)
            numbers = [part for part in parts if isinstance(part, ast.Constant)]
            kernels = [self._node(part) for part in parts if part not in numbers]
            if not kernels:
                raise self._unreadable("there is a number without a kernel")
            scale = 1.0
            for number in numbers:
                scale *= self._positive(number)
            product = product_of(kernels)
            return _multiplied(product, scale) if numbers else product
        if isinstance(tree, ast.Name):
            return self._kernel(tree.id)
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Sub):
            raise self._unreadable(
                "a difference of kernels is not a kernel, as its variance may be negative"
            )
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
            divisor = tree.right.value if isinstance(tree.right, ast.Constant) else None
            if not is_number(divisor) or not divisor > 0:
                raise self._unreadable("a quotient of kernels is not a kernel")
            raise self._unreadable(
                f"kernels are not divided but multiplied: {1 / divisor:g}*{_bracketed(tree.left)}"
            )
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
            base = _bracketed(tree.left)
            power = tree.right.value if isinstance(tree.right, ast.Constant) else None
            count = power if isinstance(power, int) and 2 <= power <= MAX_WRITTEN else 2
            raise self._unreadable(
                "the factors of a power share their parameters, which no config holds: write "
                f"{'*'.join([base] * count)}, whose factors have parameters of their own, or in "
                f"Python gpx.fit(kernel=RBF() ** {count}, keep=False)"
            )
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            return self._kernel_with_options(tree, tree.func.id)
        if isinstance(tree, ast.Subscript) and ast.unparse(tree.slice) == PER_INPUT:
            return self._per_input(self._node(tree.value))
        raise self._unreadable(f"{ast.unparse(tree)} is not a kernel, sum or product")

    def _parts(self, tree: ast.expr, kind: type[ast.operator]) -> list[ast.expr]:
        """Terms of a sum or factors of a product, in order."""
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, kind):
            return [*self._parts(tree.left, kind), *self._parts(tree.right, kind)]
        return [tree]

    def _positive(self, number: ast.Constant) -> float:
        value = number.value
        if not is_number(value) or not value > 0:
            raise self._unreadable(f"{ast.unparse(number)} is not a positive number")
        return float(value)

    def _kernel(self, name: str) -> dict[str, Any]:
        if name not in self.files:
            near = difflib.get_close_matches(name.lower(), self.files, n=1)  # RBF is rbf
            hint = (
                f"did you mean {near[0]}?"
                if near
                else f"valid are: {', '.join(sorted(self.files))}"
            )
            raise ConfigError(f"{GROUP}={self.text}: there is no kernel {name}; {hint}")
        node = OmegaConf.load(self.files[name])
        assert isinstance(node, DictConfig)
        content = OmegaConf.to_container(node, resolve=False)
        assert isinstance(content, dict)
        return {str(option): value for option, value in content.items()}

    def _kernel_with_options(self, call: ast.Call, name: str) -> dict[str, Any]:
        node = self._kernel(name)
        if len(call.args) == 1 and isinstance(node.get(GROUP), dict):  # a kernel of a kernel
            node[GROUP] = self._node(call.args[0])
        elif call.args and isinstance(node.get("kernels"), list):  # a kernel of several
            node["kernels"] = [self._node(part) for part in call.args]
        elif call.args:
            raise self._unreadable(f"options need names, such as {name}(lengthscale=2)")
        for keyword in call.keywords:
            option = str(keyword.arg)
            if option not in node or option.startswith("_"):
                options = [known for known in node if not known.startswith("_")]
                near = difflib.get_close_matches(option, options, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(options)}"
                raise ConfigError(f"{GROUP}={self.text}: {name} has no option {option}; {hint}")
            node[option] = self._value(keyword.value)
        given = {str(keyword.arg) for keyword in call.keywords}
        values = OmegaConf.create({option: node[option] for option in given})
        check_option_types(values, f"{GROUP}={name}", target_of(OmegaConf.create(node), name))
        one_each = node.get("ard_num_dims") is not None and "ard_num_dims" not in given
        if one_each and isinstance(node.get("active_dims"), list):
            node["ard_num_dims"] = len(node["active_dims"])
        return node

    def _per_input(self, term: dict[str, Any]) -> dict[str, Any]:
        """The config that ``with_terms_per_input`` replaces by one term of each input."""
        if "active_dims" not in term or term["active_dims"] is not None:
            raise self._unreadable(
                "'per input' follows one kernel that can be restricted to an input, such as "
                "matern32 per input"
            )
        own = {name: 1 for name in COUNTS if term.get(name) is not None}
        return {**sum_of([{**term, **own}]), PER_INPUT: True}

    def _value(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.Name):  # a word, such as family=matern32
            return WORDS.get(tree.id, tree.id)
        try:
            value = ast.literal_eval(tree)
        except ValueError:
            value = ...
        if isinstance(value, (int, float, str, list)):
            return value
        raise self._unreadable(f"{ast.unparse(tree)} is not a number, word or list")

    def _unreadable(self, why: str) -> ConfigError:
        return ConfigError(
            f"{GROUP}={self.text} cannot be read ({why}); write names of kernels with +, *, "
            f"positive numbers and parentheses, for example {EXAMPLE}"
        )


def _bracketed(tree: ast.expr) -> str:
    text = ast.unparse(tree)
    return f"({text})" if isinstance(tree, ast.BinOp) else text


def sum_of(terms: list[dict[str, Any]]) -> dict[str, Any]:
    """The config of a sum of kernels."""
    return {"_target_": SUM, "kernels": terms}


def with_terms_per_input(node: dict[str, Any], columns: Sequence[int]) -> dict[str, Any]:
    """The config of a kernel with every ``term per input`` written out.

    The terms are part of the sum that it stands in, and share its variance.

    Args:
        node: config of a kernel.
        columns: numbers of the inputs that have a term, mostly all.
    """
    found = dict(node)
    if found.pop(PER_INPUT, False):
        (term,) = found["kernels"]
        share = _multiplied(term, 1.0 / len(columns))
        found["kernels"] = [_of_input(share, place) for place in columns]
    elif isinstance(found.get("kernels"), list):
        parts: list[Any] = []
        for part in found["kernels"]:
            made = with_terms_per_input(part, columns) if isinstance(part, dict) else part
            inside = made != part and found.get("_target_") == made["_target_"] == SUM
            parts += made["kernels"] if inside else [made]
        found["kernels"] = parts
    if isinstance(found.get(GROUP), dict):
        found[GROUP] = with_terms_per_input(found[GROUP], columns)
    return found


def _of_input(node: dict[str, Any], place: int) -> dict[str, Any]:
    """The node, or the kernel that it scales, restricted to one input."""
    if isinstance(node.get(GROUP), dict):
        return {**node, GROUP: _of_input(node[GROUP], place)}
    return {**node, "active_dims": [place]}


def product_of(factors: list[dict[str, Any]]) -> dict[str, Any]:
    """The config of a product of kernels, in which only one factor has a learned outputscale.

    More would not be identifiable. Factors whose scale cannot be fixed (a sum, ``linear``) keep it;
    if there are none, the first factor does.
    """
    if len(factors) == 1:
        return factors[0]
    fixable = [factor for factor in factors if _can_fix_outputscale(factor)]
    for factor in fixable[1:] if len(fixable) == len(factors) else fixable:
        if factor["outputscale"] == 1.0:  # not given by the user
            factor["outputscale"] = None
    return {"_target_": "gpx.kernels.Product", "kernels": factors}


def _can_fix_outputscale(node: dict[str, Any]) -> bool:
    """Whether the kernel's ``outputscale`` may be null, which fixes it to one."""
    target = target_of(OmegaConf.create(node), GROUP)
    if "outputscale" not in node or not inspect.isclass(target):
        return False
    hint = typing.get_type_hints(target.__init__).get("outputscale")
    return type(None) in typing.get_args(hint)


def _multiplied(node: dict[str, Any], scale: float) -> dict[str, Any]:
    """The node with its amplitude multiplied, in one factor of a product.

    A kernel without an amplitude is wrapped in ``Scale``.
    """
    if node["_target_"] == SUM:
        return {**node, "kernels": [_multiplied(term, scale) for term in node["kernels"]]}
    if node["_target_"] == "gpx.kernels.Product":
        for place, factor in enumerate(node["kernels"]):
            made = _multiplied(factor, scale)
            if made["_target_"] != "gpx.kernels.Scale":
                kernels = [*node["kernels"][:place], made, *node["kernels"][place + 1 :]]
                return {**node, "kernels": kernels}
    for name in AMPLITUDES:
        if isinstance(node.get(name), (int, float)):
            return {**node, name: scale * node[name]}
    return {"_target_": "gpx.kernels.Scale", "kernel": node, "scale": scale}

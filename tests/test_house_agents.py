"""The house rules for algorithms: one file each, in a fixed order, known to no other file, no copy of a
sibling."""

from __future__ import annotations

import ast
import difflib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from operant.agents.table import AGENTS

SRC = Path(__file__).parents[1] / "src" / "operant"
MODULES = {str(path.relative_to(SRC)): path.read_text(encoding="utf-8") for path in sorted(SRC.rglob("*.py"))}
NAMES = {name: entry.module for name, entry in AGENTS.items()}
FILES = sorted({f"agents/{module}.py" for module in NAMES.values()})
WRITTEN = [file for file in FILES if file in MODULES]


def assert_none(faults: Iterable[str]) -> None:
    found = "\n".join(faults)
    assert not found, f"\n{found}"


def order_faults(file: str, source: str) -> Iterator[str]:
    """A docstring that lists deviations, then `Config` (mostly imported), State, losses and other
    functions, and last the algorithm."""
    tree = ast.parse(source)
    if "Deviations" not in (ast.get_docstring(tree) or ""):
        yield f"{file}: the docstring has no 'Deviations' (they may be 'none')"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    lines = {node.name: node.lineno for node in classes}
    taken = {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    for name in ("Config", "State"):
        if name not in {*lines, *taken}:
            yield f"{file}: no class {name}"
    names = [node.name for node in classes]
    if "Config" in lines and names[0] != "Config":
        yield f"{file}: Config comes first, before {names[0]}"
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    early = [node for node in functions if node.lineno < lines.get("State", 0)]
    yield from (f"{file}: State comes before {node.name}" for node in early)
    methods = {
        node.name: [f.name for f in node.body if isinstance(f, ast.FunctionDef)]
        for node in classes
        if node.name != "State"
    }
    for name, defined in methods.items():
        recipe = [f for f in defined if f in ("init", "act", "update")]
        if recipe != sorted(recipe, key=["init", "act", "update"].index):
            yield f"{file}: {name} defines {', '.join(recipe)}; the order is init, act, update"
    if not any("update" in defined for defined in methods.values()):
        yield f"{file}: no class has a method update"


def names_of(agents: dict[str, str]) -> dict[str, set[str]]:
    """Which names belong to which file: those of the table and the file's own."""
    owned: dict[str, set[str]] = {}
    for name, module in agents.items():
        for file in (f"agents/{module}.py", f"agents/options/{module}_options.py"):
            owned.setdefault(file, set()).update({name, module})
    return owned


# Names that are also ordinary words: only an import of the module betrays them.
ORDINARY = {"random", "constant", "ac", "reinforce"}

FOLDERS = {"agents/modular_parts/": "modular"}
"""Folders of one algorithm alone."""

# Options of several algorithms that carry the name of one: names that users know.
SHARED = ("ppo_epochs",)


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield names and strings of the code with their lines, docstrings and comments left out."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield node.lineno, text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text):
                yield node.lineno, text
            case ast.FunctionDef(name=text) | ast.ClassDef(name=text):
                yield node.lineno, text
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                module = getattr(node, "module", None) or ""
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)


def mention_faults(file: str, source: str, agents: dict[str, str]) -> Iterator[str]:
    """Find algorithms' names in the code of a file that is not theirs."""
    owned = names_of(agents)
    foreign = set().union(*owned.values()) - owned.get(file, set())
    foreign -= {name for folder, name in FOLDERS.items() if file.startswith(folder)}
    for line, text in texts(ast.parse(source)):
        if text in SHARED:
            continue
        words = set(re.split(r"[^a-z0-9]+", text.lower())) - ORDINARY
        words |= set(re.findall(r"operant\.agents\.(\w+)", text))
        for name in sorted(words & foreign):
            yield f"{file}:{line}: mentions the algorithm {name!r}: {text[:60]!r}"


def alike(one: str, other: str) -> float:
    """Return how much of two files is the same, line by line, 0 to 1."""
    lines = [[line.strip() for line in text.splitlines() if line.strip()] for text in (one, other)]
    return difflib.SequenceMatcher(None, *lines, autojunk=False).ratio()


def test_every_algorithm_of_the_table_has_a_file():
    assert [file for file in FILES if file not in MODULES] == []


@pytest.mark.parametrize("file", WRITTEN)
def test_algorithm_file_keeps_the_order(file):
    assert_none(order_faults(file, MODULES[file]))


@pytest.mark.parametrize("file", [f for f in MODULES if f != "agents/table.py" and "preset" not in f])
def test_no_other_file_mentions_an_algorithm(file):
    assert_none(mention_faults(file, MODULES[file], NAMES))


def test_algorithm_files_are_less_than_half_alike():
    pairs = itertools.combinations(WRITTEN, 2)
    ratios = {pair: alike(*(MODULES[file] for file in pair)) for pair in pairs}
    assert {pair: ratio for pair, ratio in ratios.items() if ratio >= 0.5} == {}


AGENTS_OF_CONTROL = {"foo": "foo", "foo2": "foo", "random": "random"}


def test_algorithm_order_control():
    good = (
        '"""Paper.\n\nDeviations: none.\n"""\nclass Config: pass\nclass State: pass\ndef loss(): '
        "pass\nclass FOO:\n"
    )
    recipe = [" def init(self): pass\n", " def act(self): pass\n", " def update(self): pass\n"]
    assert not list(order_faults("foo.py", good + "".join(recipe)))
    bad = "def loss(): pass\nclass State: pass\nclass Config: pass\nclass FOO:\n" + "".join(reversed(recipe))
    faults = "\n".join(order_faults("foo.py", bad))
    for fault in (
        "'Deviations'",
        "Config comes first",
        "State comes before loss",
        "the order is init, act, update",
    ):
        assert fault in faults
    assert "no class Config" in "\n".join(order_faults("foo.py", "x = 1"))


@pytest.mark.parametrize(
    "source",
    [
        "from operant.agents import random",
        "import operant.agents.random",
        "from operant.agents.foo import Config",
        "from operant.agents import foo",
        "if name == 'foo': pass",
        "def foo_loss(): pass",
        "x = losses.foo_loss",
        "class Foo: pass",
    ],
)
def test_mention_control(source):
    assert list(mention_faults("cli/main.py", source, AGENTS_OF_CONTROL))
    assert not list(
        mention_faults(f"agents/{'random' if 'random' in source else 'foo'}.py", source, AGENTS_OF_CONTROL)
    )


def test_mention_control_is_not_overzealous():
    source = '"""Like foo."""\nfood = jax.random.key(1)  # foo\nimport random'
    assert not list(mention_faults("cli/main.py", source, AGENTS_OF_CONTROL))


def test_alike_control():
    assert alike("a\nb\nc\nd", "a\nb\n\n  c\ne") == 0.75
    assert alike("a\nb", "c\nd") == 0.0

"""The house rules, read off the source text.

Each rule is a function that lists faults, and must find a planted one.
"""

from __future__ import annotations

import ast
import builtins
import dis
import io
import re
import subprocess
import sys
import tokenize
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "operant"
MODULES = {str(path.relative_to(SRC)): path.read_text(encoding="utf-8") for path in sorted(SRC.rglob("*.py"))}
TESTS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))}
OTHERS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for folder in ("tests", "benchmarks", "examples", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def assert_none(faults: Iterable[str]) -> None:
    found = "\n".join(faults)
    assert not found, f"\n{found}"


def at(file: str, node: ast.AST, fault: str) -> str:
    return f"{file}:{getattr(node, 'lineno', 0)}: {fault}"


def module_name(file: str) -> str:
    """`nn/build.py` -> `operant.nn.build`; `nn/__init__.py` -> `operant.nn`."""
    parts = ["operant", *Path(file).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Import order


def levels(architecture: str) -> list[list[list[str]]]:
    """Read the order of docs/architecture.md: levels from low to high, each of groups of parts.

    A comma joins parts that may know each other (one way), a bar parts that may not.
    """
    section = architecture.split("## Import order\n", 1)[1]
    order = section.split(". ", 1)[0]
    return [
        [[part.strip() for part in group.split(",")] for group in level.replace("`", "").split("|")]
        for level in order.split("<")
    ]


LEVELS = levels((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def for_types_alone(tree: ast.AST) -> set[int]:
    """Return the ids of the nodes below ``if TYPE_CHECKING``."""
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    return {id(node) for guard in guards for part in guard.body for node in ast.walk(part)}


def imported(file: str, source: str, for_types: bool = True) -> Iterator[tuple[ast.AST, str]]:
    """Yield what a module imports of operant, at any depth, also by a string `operant.x:Name` that is
    loaded later."""
    package = module_name(file).split(".")
    if not file.endswith("__init__.py"):
        package.pop()
    tree = ast.parse(source)
    skipped = set() if for_types else for_types_alone(tree)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node, f"{target}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"operant(\.\w+)+(:\w+)?", str(node.value)):
            yield node, str(node.value).replace(":", ".")


def import_faults(file: str, source: str, order: list[list[list[str]]] = LEVELS) -> Iterator[str]:
    place = {part: (i, j) for i, level in enumerate(order) for j, group in enumerate(level) for part in group}
    own = Path(file).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):  # the front door, above all levels
        return
    if own not in place:
        yield f"{file}: {own!r} has no place in the import order of docs/architecture.md"
        return
    for node, name in imported(file, source):
        parts = name.split(".")
        if parts[0] != "operant" or name == "operant.__version__":
            continue
        other = parts[1] if len(parts) > 1 else ""
        if other not in place:
            yield at(file, node, f"imports {name}, which has no place in the import order")
        elif place[other][0] > place[own][0]:
            yield at(file, node, f"{own} imports {other}, which stands above it")
        elif place[other][0] == place[own][0] and place[other][1] != place[own][1]:
            yield at(file, node, f"{own} and {other} must not know each other")


def graph(modules: dict[str, str]) -> dict[str, set[str]]:
    """Return the modules that each module imports, also inside functions.

    Imports for types alone do not count.
    """
    names = {module_name(file) for file in modules}
    known: dict[str, set[str]] = {name: set() for name in names}
    for file, source in modules.items():
        for _, target in imported(file, source, for_types=False):
            while target and target not in names:
                target = target.rpartition(".")[0]
            if target not in ("", "operant", module_name(file)):
                known[module_name(file)].add(target)
    return known


def circle_faults(modules: dict[str, str]) -> Iterator[str]:
    """Find modules that import themselves by way of others."""
    known = graph(modules)
    for module in known:
        seen, front = set(), {module}
        while front:
            front = set().union(*(known[name] for name in front)) - seen
            seen |= front
        if module in seen:
            yield f"{module} imports itself by way of {', '.join(sorted(known[module] & seen))}"


@pytest.mark.parametrize("file", MODULES)
def test_imports_run_one_way(file):
    assert_none(import_faults(file, MODULES[file]))


def test_no_module_imports_itself_by_way_of_others():
    assert_none(circle_faults(MODULES))


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("ops/returns.py", "from operant.nn import build", "ops imports nn, which stands above it"),
        ("ops/returns.py", "def f():\n    import operant.cli.main", "ops imports cli, which stands above it"),
        (
            "agents/base.py",
            "from operant.envs.native.probe import Probe",
            "agents and envs must not know each other",
        ),
        ("envs/native/probe.py", "from ...agents import AGENTS", "envs and agents must not know each other"),
        (
            "spec/registry.py",
            "LATER = {'x': 'operant.execution.agent:Agent'}",
            "spec imports execution, which stands above it",
        ),
        ("spec/registry.py", "from operant import Agent", "imports operant.Agent, which has no place"),
        ("attic.py", "", "'attic' has no place in the import order"),
    ],
)
def test_import_order_control(file, source, fault):
    assert any(fault in found for found in import_faults(file, source))


def test_import_order_as_documented():
    assert levels("## Import order\n\n`a, b` < `c` |\n`d`. A test enforces it.") == [
        [["a", "b"]],
        [["c"], ["d"]],
    ]
    assert not list(
        import_faults("nn/heads.py", "from operant.ops import losses\nfrom . import layers\nimport jax")
    )


def test_circle_control():
    circle = {"nn/a.py": "from operant.memory import b", "memory/b.py": "def f():\n    import operant.nn.a"}
    assert len(list(circle_faults(circle))) == 2
    three = {
        "nn/a.py": "import operant.nn.b",
        "nn/b.py": "from . import c",
        "nn/c.py": "LATER = 'operant.nn.a:X'",
    }
    assert len(list(circle_faults(three))) == 3
    types = {"nn/a.py": "if TYPE_CHECKING:\n    import operant.nn.b", "nn/b.py": "import operant.nn.a"}
    assert not list(circle_faults(types))


# The plan of the house

LOOSE = {"__init__.py", "__main__.py", "errors.py", "types.py"}
"""Modules that stand in no package."""
EACH = {"Config", "State"}
"""Classes that every algorithm has under this name, and every name of a file that every package has."""


def loose_faults(files: Iterable[str]) -> Iterator[str]:
    yield from (f"{file}: belongs in a package" for file in files if "/" not in file and file not in LOOSE)


def twice_faults(modules: dict[str, str]) -> Iterator[str]:
    """Find files and classes whose name another one has, too."""
    files: dict[str, list[str]] = {}
    classes: dict[str, list[str]] = {}
    for file, source in modules.items():
        if Path(file).name not in ("__init__.py", "__main__.py"):
            files.setdefault(Path(file).name, []).append(file)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and node.name not in EACH:
                classes.setdefault(node.name, []).append(file)
    for name, places in {**files, **classes}.items():
        if len(places) > 1:
            yield f"{name} stands in {', '.join(places)}"


NOUNS = {"Embedding", "Pooling", "Clipping"}
"""Names of classes that end as participles do, and are none: layers have them everywhere."""

MOST_LINES = 48_890
"""Lines of the package. The goal is 41,000: lower this with every cut."""


def participle_faults(file: str, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        name = node.name if isinstance(node, ast.ClassDef) else ""
        if re.fullmatch(r"_?[A-Z][a-z]+(ed|ing)", name) and name not in NOUNS:
            yield at(file, node, f"{name} is no noun")


def size_faults(modules: dict[str, str], most: int = MOST_LINES) -> Iterator[str]:
    lines = sum(source.count("\n") for source in modules.values())
    if lines > most:
        yield f"{lines} lines, of at most {most}"


def test_the_package_does_not_grow():
    assert_none(size_faults(MODULES))


def test_nothing_is_loose():
    assert_none(loose_faults(MODULES))


def test_no_name_stands_twice():
    assert_none(twice_faults(MODULES))


def test_plan_control():
    assert list(loose_faults(["attic.py", "nn/build.py"])) == ["attic.py: belongs in a package"]
    classes = {
        "nn/a.py": "class A: pass\nclass Config: pass",
        "ops/b.py": "class A: pass\nclass Config: pass",
    }
    assert list(twice_faults(classes)) == ["A stands in nn/a.py, ops/b.py"]
    assert list(twice_faults({"nn/a.py": "", "ops/a.py": ""})) == ["a.py stands in nn/a.py, ops/a.py"]
    assert not list(twice_faults({"nn/__init__.py": "", "ops/__init__.py": ""}))
    assert list(size_faults({"nn/a.py": "\n\n\n"}, most=2)) == ["3 lines, of at most 2"]


# Names, dangerous calls, shape of the code


def module_name_faults(file: str) -> Iterator[str]:
    for part in Path(file).with_suffix("").parts:
        if part.strip("_") in {"util", "utils", "common", "helper", "helpers", "misc"}:
            yield f"{file}: {part!r} names no thing"


UNSAFE_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNSAFE_SETTINGS = {"allow_pickle": True, "safe_mode": False, "weights_only": False}


def unsafe_faults(file: str, source: str) -> Iterator[str]:
    """Find what could run code out of a file or a message."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [node.func.id] if node.func.id in ("eval", "exec") else []
            names += [
                a.value for a in node.args[:1] if node.func.id == "__import__" and isinstance(a, ast.Constant)
            ]
        elif isinstance(node, ast.Attribute):
            names = [node.attr] if node.attr == "enable_unsafe_deserialization" else []
        elif isinstance(node, ast.keyword) and node.arg in UNSAFE_SETTINGS:
            safe = isinstance(node.value, ast.Constant) and node.value.value is not UNSAFE_SETTINGS[node.arg]
            names = [] if safe else [f"{node.arg}="]
        for name in names:
            unsafe = name.split(".")[0] in UNSAFE_MODULES or not isinstance(node, ast.Import | ast.ImportFrom)
            if unsafe:
                yield at(file, node, f"{name} can run code that came with data")


def patch_faults(file: str, source: str) -> Iterator[str]:
    """Find assignments to attributes of another library's modules, and of what stands in them."""
    tree = ast.parse(source)
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level):
            base = node.module if isinstance(node, ast.ImportFrom) else None
            names = [(a.asname or a.name.split(".")[0], (base or a.name).split(".")[0]) for a in node.names]
            modules |= {name for name, library in names if library not in ("operant", "sys")}
        elif isinstance(node, ast.Assign) and "import_module(" in ast.unparse(node.value):
            modules |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    for node in ast.walk(tree):
        place = None
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            place = node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            place = node.args[0]
        if place is None:
            continue
        root = place
        while isinstance(root, ast.Attribute | ast.Call | ast.Subscript):
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name) and root.id in modules:
            yield at(file, node, f"changes {ast.unparse(place)}, which belongs to another library")


def field_faults(file: str, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        name = None
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        if name in ("done", "dones", "rng"):
            instead = "key" if name == "rng" else "terminated and truncated"
            yield at(file, node, f"{name!r}: say {instead}")


def nesting_faults(file: str, source: str, most: int = 2) -> Iterator[str]:
    def visit(node: ast.AST, depth: int) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inner = depth + isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if inner > max(most, depth):
                yield at(file, child, f"function {getattr(child, 'name', '')!r} is nested {inner} deep")
            yield from visit(child, inner)

    return visit(ast.parse(source), 0)


def leftover_faults(file: str, source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and re.search(r"\b(TODO|FIXME|XXX|HACK)\b", token.string):
            yield f"{file}:{token.start[0]}: {token.string}"
        if token.type == tokenize.NAME and token.string == "NotImplementedError":
            yield f"{file}:{token.start[0]}: NotImplementedError"


def width_faults(file: str, source: str, most: int = 110) -> Iterator[str]:
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > most:
            yield f"{file}:{number}: {len(line)} columns"


def undefined_faults(file: str, source: str) -> Iterator[str]:
    """Find names that nothing defines: the axes of jaxtyping keep ruff and mypy from looking."""
    codes = [compile(source, file, "exec")]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    steps = [step for code in codes for step in dis.get_instructions(code)]
    known = {step.argval for step in steps if step.opname in ("STORE_NAME", "STORE_GLOBAL")}
    known |= {*vars(builtins), "__annotations__", "__file__", "__path__"}
    for name in sorted(
        {step.argval for step in steps if step.opname in ("LOAD_NAME", "LOAD_GLOBAL")} - known
    ):
        yield f"{file}: {name!r} is not defined"


@pytest.mark.parametrize("file", MODULES)
@pytest.mark.parametrize(
    "rule",
    [
        unsafe_faults,
        patch_faults,
        field_faults,
        nesting_faults,
        leftover_faults,
        width_faults,
        participle_faults,
        undefined_faults,
    ],
)
def test_source_follows(rule, file):
    assert_none(rule(file, MODULES[file]))


def test_module_names_say_something():
    assert_none(fault for file in MODULES for fault in module_name_faults(file))


@pytest.mark.parametrize("file", OTHERS)
def test_nothing_is_left_over_and_lines_fit(file):
    assert_none(leftover_faults(file, OTHERS[file]))
    if "data/examples" not in file:
        assert_none(width_faults(file, OTHERS[file]))


@pytest.mark.parametrize(
    ("rule", "source", "fault"),
    [
        (unsafe_faults, "def f():\n    import pickle", "a.py:2: pickle can run code"),
        (unsafe_faults, "from joblib.externals import x", "joblib.externals can run code"),
        (unsafe_faults, "__import__('dill')", "dill can run code"),
        (unsafe_faults, "eval(text)", "eval can run code"),
        (unsafe_faults, "exec(compile(text, '', 'exec'))", "exec can run code"),
        (unsafe_faults, "np.load(f, allow_pickle=True)", "allow_pickle= can run code"),
        (unsafe_faults, "np.load(f, allow_pickle=flag)", "allow_pickle= can run code"),
        (unsafe_faults, "keras.saving.load_model(f, safe_mode=False)", "safe_mode= can run code"),
        (patch_faults, "import keras\nkeras.src.backend.nn.conv = f", "changes keras.src.backend.nn.conv"),
        (patch_faults, "nn = importlib.import_module('x').nn\nnn.conv = f", "changes nn.conv"),
        (patch_faults, "from a import keras\nkeras().layers.Dense.call = f", "changes keras().layers.Dense"),
        (patch_faults, "import jax\nsetattr(jax.numpy, 'dot', f)", "changes jax.numpy"),
        (field_faults, "class A:\n    done: bool", "a.py:2: 'done': say terminated and truncated"),
        (field_faults, "def f(x, *, rng): pass", "'rng': say key"),
        (field_faults, "rng, other = split(x)", "'rng': say key"),
        (field_faults, "self.done = True", "'done'"),
        (nesting_faults, "def a():\n def b():\n  def c(): pass", "a.py:3: function 'c' is nested 3 deep"),
        (undefined_faults, "import a\ndef f(x):\n    return lambda: a.b(x, np)", "a.py: 'np' is not defined"),
        (leftover_faults, "x = 1  # TODO later", "a.py:1: # TODO later"),
        (leftover_faults, "raise NotImplementedError", "NotImplementedError"),
        (participle_faults, "class Told: pass\nclass Finished: pass", "a.py:2: Finished is no noun"),
        (width_faults, "x = 1\ny = '" + 107 * "a" + "'", "a.py:2: 113 columns"),
    ],
)
def test_source_control(rule, source, fault):
    assert any(fault in found for found in rule("a.py", source))


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (unsafe_faults, "model.eval(); jax.eval_shape(f); np.load(f, allow_pickle=False); import json"),
        (
            patch_faults,
            "import a\nself.x = a.b\nlayer.name = 'x'\ndel self.x\na[0] = 1\nsetattr(self, 'a', 1)",
        ),
        (field_faults, "if future.done(): terminated = state.done"),
        (nesting_faults, "class A:\n def f(self):\n  def g(): pass\n  return lambda: g"),
        (
            undefined_faults,
            "class A:\n x = 1\n y = x\ndef f() -> Any:\n  return [len(A.x) for A in __file__]",
        ),
        (leftover_faults, "x = 'TODO'\nreturn_value = NotImplemented"),
    ],
)
def test_source_control_is_not_overzealous(rule, source):
    assert not list(rule("a.py", source))


def test_module_name_control():
    assert list(module_name_faults("nn/utils.py")) and list(module_name_faults("common/x.py"))


# Tests

SKIPS = {"skip", "skipif", "xfail", "importorskip"}


def skip_faults(file: str, source: str) -> Iterator[str]:
    """Find tests that would not run without saying why."""
    tree = ast.parse(source)
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in SKIPS:
            continue
        if ast.unparse(node.value) not in ("pytest", "pytest.mark"):
            continue
        call = calls.get(id(node))
        given = call is not None and any(keyword.arg == "reason" for keyword in call.keywords)
        by_place = call is not None and node.attr in ("skip", "xfail") and bool(call.args)
        if not (given or by_place):
            yield at(file, node, f"{node.attr} without a reason")


def empty_faults(file: str, source: str) -> Iterator[str]:
    functions = [
        n.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    if not any(name.startswith("test") for name in functions):
        yield f"{file}: holds no test"


@pytest.mark.parametrize("file", TESTS)
def test_skips_say_why(file):
    assert_none(skip_faults(file, TESTS[file]))


@pytest.mark.parametrize("file", [file for file in TESTS if file.startswith("test_")])
def test_every_test_file_holds_a_test(file):
    assert_none(empty_faults(file, TESTS[file]))


def test_tests_control():
    assert list(skip_faults("a.py", "@pytest.mark.skip\ndef test(): pass"))
    assert list(skip_faults("a.py", "@pytest.mark.skipif(windows)\ndef test(): pass"))
    assert list(skip_faults("a.py", "pytest.importorskip('ale_py')"))
    assert not list(
        skip_faults("a.py", "pytest.skip('no GPU here'); pytest.importorskip('x', reason='extra')")
    )
    assert list(empty_faults("a.py", "def helper(): pass"))
    assert not list(empty_faults("a.py", "class TestA:\n def test_a(self): pass"))


# The import of the package

HEAVY = ("jax", "keras", "optuna", "wandb", "matplotlib", "tensorboardX", "ale_py", "gymnasium")


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return {name.split(".")[0] for name in result.stdout.split()} & set(HEAVY)


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import operant; dir(operant)") == set()


def test_import_control():
    assert "gymnasium" in loaded_by("import operant, gymnasium")

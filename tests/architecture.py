"""The checker of the import rules and of "nothing but SQLite opens the file": source text in, sentences out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

PACKAGE = "oncebox"
MAX_LINES = 300
FORBIDDEN_NAMES = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}

# Who stands above whom. A top-level module that is not named here is a word like `model`, at the bottom.
RANKS = {
    "cli": 5,
    "testing": 5,
    "server": 4,
    "operate": 3,
    "accept": 3,
    "drain": 3,
    "perform": 3,
    "store": 2,
    "config": 2,
}
# Rooms of several modules at the top: what is said of the room is said of each of them.
ROOMS = {
    "config": {"defaults", "kind", "rules", "settings", "table"},
    "server": {"logs", "mount", "plugin", "reload", "serve", "watch", "wire", "wiring"},
}
KNOW_CONFIG = {"config", "accept", "drain", "operate", "server", "cli", "testing"}

# Outside packages and the only modules that may import them (patterns without the leading "oncebox.").
OWNERS = {
    "sqlite3": ("store", "store.*"),
    "aiosqlite": ("store", "store.*"),
    "litestar": ("accept.ingress", "operate", "operate.*", "server", "mount", "plugin"),
    "aiohttp": ("drain.connections", "drain.exchange", "drain.http"),
    "httpx": (),
    "requests": (),
    "rich": ("cli", "cli.*"),
    "click": ("cli", "cli.*"),
}

# Pure is every word but `secret`, which reads files, `clock`, which is one, `body` and `deadline`, which wait; all of
# accept but the modules that meet a request in the making; and what the drain and the operations decide by.
ACTS_IN_ACCEPT = ("accept", "accept.body*", "accept.door*", "accept.inbox", "accept.ingress", "accept.refusal*")
PURE = (
    "drain.retry",
    "drain.breaker",
    "drain.ahead",
    "drain.room",
    "perform.callers",
    "perform.decision",
    "perform.fingerprint",
    "perform.key",
    "perform.reply",
)
IMPURE_IMPORTS = {"time", "random", "secrets", "os", "socket", "asyncio", "anyio", "threading", "subprocess"}
CLOCKS = {"now", "utcnow", "today"}

# Names that open, copy or map a file, wherever they are mentioned; `.open` counts when it is called.
OPENERS = {"read_bytes", "read_text", "write_bytes", "write_text", "sendfile", "copy_file_range", "open_file", "fdopen"}
FILE_MODULES = {"shutil", "mmap", "aiofiles"}
HARMLESS = {"disk_usage", "which", "get_terminal_size"}
OPEN_OF = {("os", "open"), ("io", "open"), ("codecs", "open")}
FILE_RESPONSES = {"File", "FileResponse", "StaticFilesConfig", "create_static_files_router"}


class Module:
    """One module: its dotted name without the package ("" for the front door) and its source."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source

    @property
    def room(self) -> str:
        return room_of(self.name)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def imports(self) -> list[tuple[str, str | None]]:
        """(module, name taken from it or None), function-level imports too."""
        found: list[tuple[str, str | None]] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [(alias.name, None) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found += [("." * node.level + (node.module or ""), alias.name) for alias in node.names]
        return found


def room_of(name: str) -> str:
    """The part of the package that a module belongs to."""
    first = name.split(".", maxsplit=1)[0]
    return next((room for room, modules in ROOMS.items() if first in modules), first)


Rule = Callable[[Mapping[str, Module]], Iterator[str]]


def read_package(folder: Path) -> dict[str, Module]:
    """All modules below a package's folder, by name."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path.read_text())
    return modules


def inner_imports(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    """The modules of the package that one imports; "" is the package's front door."""
    for source, taken in module.imports:
        if source != PACKAGE and not source.startswith(f"{PACKAGE}."):
            continue
        target = source.removeprefix(PACKAGE).removeprefix(".")
        child = f"{target}.{taken}".removeprefix(".")
        yield child if taken is not None and child in modules else target


def arrows(modules: Mapping[str, Module]) -> Iterator[str]:
    """Imports point down; accept, drain and perform do not know each other; few know the configuration."""
    for module in modules.values():
        if module.name == "":
            continue
        for target in inner_imports(module, modules):
            reason = _against(module.room, room_of(target))
            if reason:
                yield f"{module.name} imports {target or PACKAGE}: {reason}"


def _against(room: str, target: str) -> str | None:
    if target == "":
        return "the package's front door is for people who write handlers"
    if room == target:
        return None
    if target == "config" and room not in KNOW_CONFIG:
        return f"{room} takes plain values, not the configuration"
    above, below = RANKS.get(room, 1), RANKS.get(target, 1)
    if above > below or above == below == 1:
        return None
    return "imports point down only (cli, testing > server > operate, accept, drain, perform > store > words)"


def cycles(modules: Mapping[str, Module]) -> Iterator[str]:
    """No module reaches itself, imports inside functions included."""
    graph = {name: {to for to in inner_imports(module, modules) if to != name} for name, module in modules.items()}
    for name in graph:
        path = _way_back(name, graph)
        if path and name == min(path):
            yield "a cycle: " + " > ".join(path)


def _way_back(start: str, graph: Mapping[str, set[str]]) -> list[str] | None:
    queue = [[start]]
    seen: set[str] = set()
    while queue:
        path = queue.pop(0)
        for target in sorted(graph.get(path[-1], ())):
            if target == start:
                return [*path, start]
            if target not in seen:
                seen.add(target)
                queue.append([*path, target])
    return None


def owners(modules: Mapping[str, Module]) -> Iterator[str]:
    """Outside packages stay in the rooms that own them."""
    for module in modules.values():
        for outside in sorted({source.split(".", maxsplit=1)[0] for source, _ in module.imports} & OWNERS.keys()):
            if not _matches(module.name, OWNERS[outside]):
                yield f"{module.name} imports {outside}: only {', '.join(OWNERS[outside]) or 'nobody'} may"


def printing(modules: Mapping[str, Module]) -> Iterator[str]:
    """Only the command line prints."""
    for module in modules.values():
        if module.room == "cli":
            continue
        for node in ast.walk(module.tree):
            if _dotted(node) in {"print", "sys.stdout"}:
                yield f"{module.name}:{_line(node)} prints: only cli does"


def pure(modules: Mapping[str, Module]) -> Iterator[str]:
    """Pure modules take plain values and `now`: no clock, no chance, no I/O, no Config, no store."""
    for module in modules.values():
        if not _is_pure(module):
            continue
        for source in sorted({source for source, _ in module.imports}):
            if source.split(".", maxsplit=1)[0] in IMPURE_IMPORTS:
                yield f"{module.name} imports {source}: it is pure, pass the value in"
        for target in inner_imports(module, modules):
            if room_of(target) in {"config", "store"}:
                yield f"{module.name} imports {target}: it is pure, pass plain values in"
        for node in ast.walk(module.tree):
            owner, _, attribute = _dotted(node).rpartition(".")
            if attribute in CLOCKS and owner.rpartition(".")[2] in {"datetime", "date"}:
                yield f"{module.name}:{_line(node)} reads a clock: pass `now` in"


def _is_pure(module: Module) -> bool:
    if module.room == "accept":
        return not _matches(module.name, ACTS_IN_ACCEPT)
    word = module.name != "" and module.room not in {*RANKS, "secret", "clock", "body", "deadline"}
    return word or _matches(module.name, PURE)


def shape(modules: Mapping[str, Module]) -> Iterator[str]:
    """Each module is one named thing that fits on a few screens and says what it is."""
    for module in modules.values():
        lines = module.source.count("\n")
        if lines >= MAX_LINES:
            yield f"{module.name} has {lines} lines: split it (under {MAX_LINES})"
        if not ast.get_docstring(module.tree):
            yield f"{module.name} has no docstring"
        if module.name.rpartition(".")[2] in FORBIDDEN_NAMES:
            yield f"{module.name}: name it after the one thing that it is"
        if any(source.startswith(".") for source, _ in module.imports):
            yield f"{module.name} has a relative import: write the whole name"
        # The front door tells type checkers of what it imports late; nothing there imports it back.
        if module.name and any(_dotted(node).endswith("TYPE_CHECKING") for node in ast.walk(module.tree)):
            yield f"{module.name} uses TYPE_CHECKING: mend the cycle that it hides"


RULES: tuple[Rule, ...] = (arrows, cycles, owners, printing, pure, shape)


def opened_files(modules: Iterable[Module]) -> Iterator[tuple[str, str, str]]:
    """(module, function, what) for each mention of something that opens, copies, maps or sends a file."""
    for module in modules:
        for function, node in _with_function(module.tree):
            what = _opens(node)
            if what:
                yield module.name, function, what


def _opens(node: ast.AST) -> str | None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return _imports_opener(node)
    if isinstance(node, ast.Call) and _method(node) == "open":
        return None if _is_our_own(node) else ast.unparse(node.func)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        if owner in FILE_MODULES:
            return None if node.attr in HARMLESS else ast.unparse(node)
        risky = node.attr in OPENERS or (owner, node.attr) in {*OPEN_OF, ("anyio", "Path")}
        return ast.unparse(node) if risky else None
    if isinstance(node, ast.Name) and (node.id == "open" or node.id in FILE_RESPONSES):
        return node.id
    return None


def _imports_opener(node: ast.Import | ast.ImportFrom) -> str | None:
    """`import shutil` alone is no use of it, but `from shutil import copy` or another name for it hides one."""
    if isinstance(node, ast.Import):
        hidden = [a for a in node.names if a.name in FILE_MODULES and (a.asname or a.name != "shutil")]
        return hidden[0].name if hidden else None
    taken = {alias.name for alias in node.names}
    if node.module in FILE_MODULES and not taken <= HARMLESS:
        return f"from {node.module}"
    risky = taken & (OPENERS | {"open"} | ({"Path"} if node.module == "anyio" else set()))
    return (
        f"from {node.module} import {min(risky)}" if node.module in {"os", "io", "codecs", "anyio"} and risky else None
    )


def _is_our_own(call: ast.Call) -> bool:
    """`Store.open(…)` and `door.open(request)` are ours; `Path.open(…)` and `path.open("rb")` are not."""
    assert isinstance(call.func, ast.Attribute)
    owner = _dotted(call.func.value)
    if owner in {"os", "io", "codecs", "Path", "ZipFile", "TarFile", "pathlib.Path"}:
        return False
    if owner[:1].isupper():
        return True
    first = call.args[0] if call.args else None
    return first is not None and not isinstance(first, ast.Constant) and "mode" not in _dotted(first)


def _with_function(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Each node with the function that it is in; an awaited `x.open(…)` is ours, since a file's is not awaited."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Await) and _method(child.value) == "open":
            yield from _with_function(child.value, inside)
            continue
        yield inside or "<module>", child
        name = inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{child.name}".removeprefix(".")
        yield from _with_function(child, name)


def _method(node: ast.AST) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}".removeprefix(".")
    return ""


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)

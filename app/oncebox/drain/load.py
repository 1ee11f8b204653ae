"""Loading: handler modules are imported and searched for what the decorators made."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Collection, Container, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from oncebox.drain.handler import Handler, Setup
from oncebox.errors import HandlerError
from oncebox.route import Route


class Handlers(msgspec.Struct, frozen=True):
    """All handlers and set-ups of the configured modules, in the order in which they were written.

    `notes` are sentences about modules that bring nothing.
    """

    handlers: tuple[Handler[..., Any], ...] = ()
    setups: tuple[Setup[..., Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(handler.name for handler in self.handlers)

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(handler.route for handler in self.handlers)


def load_handlers(modules: Sequence[str], folder: Path, *, taken: Collection[str] = ()) -> Handlers:
    """Import the modules, with `folder` importable, and find their handlers and set-ups, each once.

    Raises HandlerError for a module that cannot be imported, with file, line and the original error, and for two
    targets of the same name; `taken` are the names of configured targets.
    """
    path = str(folder)
    if path not in sys.path:
        sys.path.insert(0, path)
    importlib.invalidate_caches()
    loaded = [_imported(name, folder) for name in modules]
    found = find_handlers(loaded)
    _refuse_clashes(found, taken)
    return found


def find_handlers(modules: Sequence[ModuleType]) -> Handlers:
    """What the modules' namespaces hold; an object that several modules import counts once."""
    seen: dict[int, object] = {}
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, (Handler, Setup)):
                seen.setdefault(id(value), value)
    return Handlers(
        tuple(value for value in seen.values() if isinstance(value, Handler)),
        tuple(value for value in seen.values() if isinstance(value, Setup)),
        tuple(note for module in modules for note in _notes(module, seen)),
    )


def _notes(module: ModuleType, found: Container[int]) -> Iterator[str]:
    """What was surely meant otherwise: a module without anything decorated, and handlers where nobody looks."""
    if not any(map(_is_decorated, vars(module).values())):
        yield (
            f"handlers: {module.__name__} has nothing decorated in it, no @on, @setup or @operation; its functions "
            "are no handlers, and it could be left out"
        )
    for name, value in vars(module).items():
        held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
        for one in held:
            if isinstance(one, (Handler, Setup)) and id(one) not in found:
                yield f"handlers: {one!r} is inside of {module.__name__}.{name} and not found there; give it a name"


def _is_decorated(value: object) -> bool:
    """Whether one of our decorators made it: what they make are things of ours that can be called."""
    return type(value).__module__.startswith("oncebox.") and callable(value)


def _imported(name: str, folder: Path) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise HandlerError(_cannot_import(name, folder, error)) from error
    file = getattr(module, "__file__", None)
    ours = folder.joinpath(*name.split("."))
    expected = next((p for p in (ours.with_suffix(".py"), ours / "__init__.py") if p.is_file()), None)
    if expected is not None and (file is None or not expected.samefile(file)):
        raise HandlerError(
            f"handler module {name}: {expected} is hidden by another module of that name "
            f"({file or 'built in'}); give the file another name"
        )
    return module


def _cannot_import(name: str, folder: Path, error: BaseException) -> str:
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and (name == error.name or name.startswith(f"{error.name}."))
    ):
        return f"handler module {name}: there is no {name.replace('.', '/')}.py in {folder}; correct `handlers = […]`"
    file, line = _blamed(error, folder)
    what = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    if isinstance(error, HandlerError):
        what = str(error)
    return f"handler module {name} cannot be imported: {file}, line {line}: {what}"


def _blamed(error: BaseException, folder: Path) -> tuple[str, int]:
    """The innermost line of the user's own files, else the innermost of all."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    if not frames:
        return "unknown file", 0
    last = (own or frames)[-1]
    return last.filename, last.lineno or 0


def _refuse_clashes(found: Handlers, taken: Collection[str]) -> None:
    places: dict[str, str] = dict.fromkeys(taken, "[targets] of the configuration")
    for handler in found.handlers:
        if handler.name in places:
            raise HandlerError(
                f'two targets are called "{handler.name}": {places[handler.name]} and {handler.place}; '
                'name one of them otherwise, such as on(…, name="…")'
            )
        places[handler.name] = handler.place

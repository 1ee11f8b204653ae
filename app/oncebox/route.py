"""Routes: which targets an event goes to, and in which order. Pure."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from oncebox.model import Arrival, Planned
from oncebox.pointer import MISSING, Document, Path, canonical, equal, key_text, parse

Extractor = Callable[[Arrival], str | None]
Router = Callable[[Arrival], Sequence[Planned]]
Memory = dict[tuple[str, str | None], "Plan"]

# Types come from senders, so the memory of seen ones must be bounded.
REMEMBERED = 4096
GLOB = frozenset("*?[")
# Kinds of fault of one function that are said.
FAULTS = 20

log = logging.getLogger("oncebox.route")


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Events of these sources and types, for which all of `where` holds, go to each target in `to`.

    `source` and `type` are case-sensitive globs; an event without a type matches only "*". `where` maps JSON pointers
    to the values they must have. `ordered_by` is a JSON pointer, or a function of the arrival.
    """

    source: str = "*"
    type: str = "*"
    where: Mapping[str, object] = {}
    ordered_by: str | Extractor | None = None
    to: tuple[str, ...] = ()

    def matches(self, source: str, type: str | None) -> bool:
        """Whether source and type fit, which is all that is known without the body."""
        if not fnmatchcase(source, self.source):
            return False
        return self.type == "*" or (type is not None and fnmatchcase(type, self.type))


class Step(msgspec.Struct, frozen=True):
    """A compiled route: the conditions on the body, the order, and the targets. `told` are the faults of its order that
    have been said."""

    where: tuple[tuple[Path, object], ...]
    pointer: Path | None
    extractor: Extractor | None
    to: tuple[str, ...]
    plain: tuple[Planned, ...]
    told: set[str]


class Plan(msgspec.Struct, frozen=True):
    """What one (source, type) asks for: a finished answer, or the steps to take for each event."""

    answer: tuple[Planned, ...] | None
    steps: tuple[Step, ...]


def compile_router(routes: Sequence[Route]) -> Router:
    """A function from an arrival to its deliveries: one for each target, by the first route that names it.

    It never raises for what is in an event: a body that is not JSON matches no `where` and has no order key.
    Raises ValueError for a pointer that is not one.
    """
    steps = [(route, compile_step(route)) for route in routes]
    memory: Memory = {}

    def router(arrival: Arrival) -> Sequence[Planned]:
        key = (arrival.source, arrival.type)
        plan = memory.get(key)
        if plan is None:
            if len(memory) >= REMEMBERED:
                memory.clear()
            plan = memory[key] = plan_for([step for route, step in steps if route.matches(*key)])
        return plan.answer if plan.answer is not None else decide(plan.steps, arrival)

    return router


def compile_step(route: Route) -> Step:
    """A route with its pointers parsed and its values made comparable."""
    order = route.ordered_by
    return Step(
        where=tuple((parse(pointer), canonical(value)) for pointer, value in route.where.items()),
        pointer=parse(order) if isinstance(order, str) else None,
        extractor=None if isinstance(order, str) else order,
        to=route.to,
        plain=tuple(Planned(target) for target in route.to),
        told=set(),
    )


def plan_for(steps: Sequence[Step]) -> Plan:
    """The plan of the matching steps; finished if none of them looks into the event."""
    if any(step.where or step.pointer is not None or step.extractor for step in steps):
        return Plan(None, tuple(steps))
    answer = {planned.target: planned for step in reversed(steps) for planned in reversed(step.plain)}
    return Plan(tuple(reversed(answer.values())), ())


def decide(steps: Sequence[Step], arrival: Arrival) -> Sequence[Planned]:
    """Judge each step by the event itself; its body is read at most once."""
    document = Document(arrival.decoded, arrival.content_type)
    chosen: dict[str, Planned] = {}
    for step in steps:
        if not all(equal(document.at(path), value) for path, value in step.where):
            continue
        key = order_key(step, arrival, document)
        for planned in step.plain:
            if planned.target not in chosen:
                chosen[planned.target] = planned if key is None else Planned(planned.target, key)
    return tuple(chosen.values())


def order_key(step: Step, arrival: Arrival, document: Document) -> str | None:
    """The key that this event's deliveries are in order by; None if it has none."""
    if step.pointer is not None:
        found = document.at(step.pointer)
        return None if found is MISSING else key_text(found)
    if step.extractor is None:
        return None
    try:
        return _key_of(step.extractor(arrival))
    except BaseException as error:  # noqa: BLE001  # an odd event, or SystemExit, must not fail the accept of its neighbours
        _tell(step, type(error).__name__ if not isinstance(error, OddKey) else str(error))
        return None


class OddKey(TypeError):
    """What a function gave is no order key."""


def _key_of(found: object) -> str | None:
    """What a function of the user's gave, as a plain text of a sane length whatever class it is of."""
    if isinstance(found, str):
        return key_text(str.__str__(found))
    if found is None or isinstance(found, (int, float)):
        return key_text(found)
    if inspect.iscoroutine(found):
        found.close()
    raise OddKey(f"a {type(found).__name__} in place of a text")


def _tell(step: Step, fault: str) -> None:
    """Each kind of fault once: events come by the thousand. What an error says may quote a body."""
    if fault not in step.told and len(step.told) < FAULTS:
        step.told.add(fault)
        names = ",".join(step.to)
        log.warning("ordered_by failed target=%s: it ended with %s; such an event is in no order", names, fault)


def internal_sources(
    routes: Iterable[Route], *, declared: Collection[str] = (), receiving: Collection[str] = ()
) -> frozenset[str]:
    """The sources that handlers may emit into: `declared` internal ones that something listens to, and exact names
    in routes that no source of the configuration (`receiving` from outside) has."""
    routes = list(routes)
    mentioned = {route.source for route in routes if not GLOB & set(route.source)}
    return frozenset((mentioned | listened(routes, declared)) - set(receiving))


def listened(routes: Iterable[Route], names: Iterable[str]) -> set[str]:
    """Those of the names that at least one route listens to."""
    globs = {route.source for route in routes}
    return {name for name in names if any(fnmatchcase(name, glob) for glob in globs)}


def reach(routes: Iterable[Route], sources: Collection[str]) -> dict[str, frozenset[str]]:
    """By target, those of the sources whose events may come to it."""
    reached: dict[str, frozenset[str]] = {}
    for route in routes:
        some = frozenset(name for name in sources if fnmatchcase(name, route.source))
        for target in route.to:
            reached[target] = reached.get(target, frozenset()) | some
    return reached

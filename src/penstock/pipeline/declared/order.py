"""Which step reads which: the order of the steps, circles, and what nobody reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from penstock.pipeline.declared.declaration import Declaration, Sink, Source, Step, TopicSource
from penstock.pipeline.declared.places import Places
from penstock.pipeline.declared.problems import Problem, Problems, nearest
from penstock.pipeline.declared.words import find_word

STEPS_MAX: Final = 200  # that read each other in a row; nobody writes that many by hand


def put_in_order(
    sources: list[Source], steps: list[Step], sinks: list[Sink], places: Places, problems: Problems
) -> list[Step]:
    """The steps, each after those it reads; what is wrong between them goes into `problems`."""
    named: list[tuple[str, Source | Step]] = [
        *(("sources", source) for source in sources),
        *(("steps", step) for step in steps),
    ]
    kinds: dict[str, str] = {}
    for kind, one in named:
        if one.name.lower() in kinds:
            problems.add(
                places.of(kind, one.name),
                f"there is already a {kinds[one.name.lower()]} named {one.name!r}, and names in "
                "SQL are not case-sensitive: choose another name",
            )
        kinds[one.name.lower()] = kind.removesuffix("s")
    for sink in sinks:
        if sink.step.lower() not in kinds:
            known = nearest(sink.step, [one.name for _, one in named])
            problems.add(
                places.of("sinks", sink.name, "step"),
                f"there is no step or source {sink.step!r}: {known}",
            )
    problems.raise_any()  # wrong names would make others look unused
    order = _Order(steps, places, problems)
    return [
        replace(step, reads=tuple(name for name in step.reads if name in kinds))
        for step in order.found.values()
    ]


def find_unused(
    sources: list[Source], steps: list[Step], sinks: list[Sink], places: Places
) -> Iterator[Problem]:
    """What leads nowhere: sources and steps that nobody reads, and sinks that no topic reaches."""
    used = {sink.step.lower() for sink in sinks}
    used |= {name for step in steps for name in step.reads}
    named: list[tuple[str, Sequence[Source | Step]]] = [("source", sources), ("step", steps)]
    for what, ones in named:
        for one in ones:
            if one.name.lower() not in used:
                said = (
                    f"{what} {one.name!r} is never used: use it in a step or a sink, or remove it"
                )
                yield Problem(places.of(f"{what}s", one.name), said)
    moving = {source.name.lower() for source in sources if isinstance(source, TopicSource)}
    for step in steps:
        moving |= {step.name.lower()} if moving & set(step.reads) else set()
    for sink in sinks:
        if sink.step.lower() not in moving:
            yield Problem(
                places.of("sinks", sink.name, "step"),
                f"{sink.step!r} reads no topic, so this sink would never receive a row: join it "
                "with a source that reads a topic",
            )


def inputs_of(steps: Sequence[Step], name: str) -> set[str]:
    """A source or step, in lower case, and all that it reads, directly or not."""
    found = {name}
    for step in reversed(steps):
        if step.name.lower() in found:
            found.update(step.reads)
    return found


def part_of(declared: Declaration, sink: Sink) -> Declaration:
    """The declaration as if it had this sink alone, and what leads to it."""
    needed = inputs_of(declared.steps, sink.step.lower())
    return replace(
        declared,
        sources=tuple(one for one in declared.sources if one.name.lower() in needed),
        steps=tuple(one for one in declared.steps if one.name.lower() in needed),
        sinks=(sink,),
        unused=(),
    )


class _Order:
    """Steps by name, in lower case, each after those it reads."""

    def __init__(self, steps: list[Step], places: Places, problems: Problems) -> None:
        self.found: dict[str, Step] = {}
        self._steps = {step.name.lower(): step for step in steps}
        self._places = places
        self._problems = problems
        for step in steps:
            self._add(step, [])

    def _add(self, step: Step, above: list[str]) -> None:
        key = step.name.lower()
        if key in self.found:
            return
        chain = [*above, key]
        for name in step.reads:
            if name in chain:
                circle = [*chain[chain.index(name) :], name]
                said = " reads ".join(repr(self._steps[one].name) for one in circle)
                self._problem(step, name, f"the steps form a circle: {said}")
            elif name in self._steps and len(chain) > STEPS_MAX:
                self._problem(
                    step,
                    name,
                    f"more than {STEPS_MAX} steps read each other in a row: combine some of them",
                )
            elif name in self._steps:
                self._add(self._steps[name], chain)
        self.found.setdefault(key, step)

    def _problem(self, step: Step, read: str, said: str) -> None:
        """Report it at the place where the step names what it reads."""
        index = find_word(step.sql, read)
        for keyword in ("from", "join", ","):
            at = find_word(step.sql, keyword, read)
            index = find_word(step.sql, read, start=at) if at else index
        self._problems.add(self._places.within(("steps", step.name, "sql"), index), said)

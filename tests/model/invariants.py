"""What must hold in every state: the invariants of DESIGN.md section 4, by their numbers."""

from __future__ import annotations

from tests.model.world import World, highest, ids_of, through


class Violation(AssertionError):
    """A state that must not be, and the steps that lead there."""

    def __init__(self, invariant: str, what: str, trace: list[str]) -> None:
        self.invariant = invariant
        self.trace = trace
        steps = "\n".join(f"{number:4}. {label}" for number, label in enumerate(trace, 1))
        super().__init__(f"{invariant}: {what}\n{steps}")


def broken_invariant(world: World) -> tuple[str, str] | None:
    """The invariant of DESIGN.md section 4 that a state breaks, and how."""
    tail = highest(world.stream)
    if world.stream & ~world.committed:
        return "1 an event is a committed row", f"{ids_of(world.stream & ~world.committed)} was never committed"
    skipped = world.committed & through(tail) & ~world.stream
    if skipped:
        return "3 nothing is skipped", f"{ids_of(skipped)} is committed, and recorded as dead below the tail {tail}"
    gone = world.committed & ~world.rows
    unproven = gone & ~world.durable & ~world.lost
    if unproven:
        return "4 durable before deleted", f"{ids_of(unproven)} is deleted and not durable in the stream"
    if gone & ~through(world.deleted_through):
        return (
            "7 deleted_through covers what is deleted",
            f"{ids_of(gone)} is gone, deleted_through is {world.deleted_through}",
        )
    if world.rows & through(world.deleted_through):
        return (
            "7 no row below deleted_through",
            f"{ids_of(world.rows)} is there, deleted_through is {world.deleted_through}",
        )
    if world.deleted_through > highest(world.durable) and not world.tail_was_lost:
        return "7 deleted_through is in the stream", f"{world.deleted_through} is past the durable tail"
    return None

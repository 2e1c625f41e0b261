"""The inbox against a model: whatever fails, restarts and is decided, each event takes effect once, in its subject's order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.inbox_case import InboxCase, record

SUBJECTS = st.sampled_from(["a", "b", "c", None])


class Crash(BaseException):
    """The process ends here, as far as the database can tell."""


class InboxMachine(RuleBasedStateMachine):
    """Events come, handlers fail for a while or until they are mended, processes die, people decide."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(
            prefix="outbox-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
        )
        self.case = InboxCase(f"sqlite:///{self.folder.name}/app.db")
        self.case.write()  # an empty stream, bound to its outbox
        self.subjects: list[str | None] = []
        # Events that fail until they are mended, and how often others fail before they succeed.
        self.poison: set[int] = set()
        self.flaky: dict[int, int] = {}
        self.dropped: set[int] = set()

    @rule(
        events=st.lists(st.tuples(SUBJECTS, st.sampled_from(["good", "good", "good", "poison", "flaky"])), max_size=8)
    )
    def write(self, events: list[tuple[str | None, str]]) -> None:
        for subject, how in events:
            self.subjects.append(subject)
            if how == "poison":
                self.poison.add(len(self.subjects))
            elif how == "flaky":
                self.flaky[len(self.subjects)] = 1
        if events:
            self.case.write(*({"subject": subject} for subject, _ in events))

    @rule(batch_events=st.integers(1, 6), tries=st.integers(2, 3), crash_at=st.none() | st.integers(1, 12))
    def consume(self, batch_events: int, tries: int, crash_at: int | None) -> None:
        calls = 0

        def handle(connection, event):
            nonlocal calls
            calls += 1
            if calls == crash_at:
                raise Crash
            record(connection, event)
            if event.id in self.poison:
                raise ValueError("poison")
            if self.flaky.get(event.id, 0) > 0:
                self.flaky[event.id] -= 1
                raise ValueError("flaky")

        try:
            self.case.consume(handle, batch_events=batch_events, tries=tries)
        except Crash:
            return
        if self.subjects:
            assert self.case.reached() == len(self.subjects)
        assert {*self.case.effects(), *self.case.parked(), *self.dropped} == set(range(1, len(self.subjects) + 1))

    @rule()
    def redrive(self) -> None:
        if self.subjects and self.case.inbox().status():
            self.case.inbox().redrive(everything=True)

    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        if self.poison:
            self.poison.discard(data.draw(st.sampled_from(sorted(self.poison))))

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        parked = sorted(self.case.parked())
        if parked:
            chosen = data.draw(st.sampled_from(parked))
            self.case.inbox().drop([chosen])
            self.dropped.add(chosen)

    @invariant()
    def nothing_twice_nothing_out_of_order(self) -> None:
        found = self.case.effects()
        assert len(found) == len(set(found)), found
        assert not set(found) & self.dropped
        parked = self.case.parked()
        assert not set(found) & set(parked)
        for subject in {subject for subject in self.subjects if subject is not None}:
            done = [number for number in found if self.subjects[number - 1] == subject]
            assert done == sorted(done), (subject, done)
            held = [number for number in parked if self.subjects[number - 1] == subject]
            assert not held or not done or max(done) < min(held), (subject, done, held)

    def teardown(self) -> None:
        """Mended and redriven, everything that was not dropped has its effect."""
        if not hasattr(self, "case"):
            return
        self.poison.clear()
        self.consume(4, 3, None)
        self.redrive()
        self.consume(4, 3, None)
        self.case.assert_exactly_once(set(range(1, len(self.subjects) + 1)) - self.dropped)
        assert self.case.parked() == {}
        self.folder.cleanup()


TestInboxMachine = InboxMachine.TestCase
TestInboxMachine.settings = settings(
    max_examples=40, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)

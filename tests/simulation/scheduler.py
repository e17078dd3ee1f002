"""Run processes of a simulated world one step at a time; a seed makes every decision.

A task runs until it reaches a point: a call to the store, a wait, or its end. There the scheduler
may switch to another task, or disturb the call. All decisions other than "continue" are recorded
with their task and point. So a schedule can be replayed with fewer of them.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

_Answer = TypeVar("_Answer")
START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
MOST_POINTS = 60_000
Key = tuple[str, int]  # the name of a task, and the number of its point
Decision = tuple[str, int]  # what to do, and which of the choices
SWITCH, KILL, KILL_AFTER, FAIL, LOST, TWICE, DELAY, SUSPEND, SKEW, LATER = (
    "switch", "kill", "kill after", "fail", "lost", "twice", "delay", "suspend", "skew", "later",
)  # fmt: skip
SECONDS = (12, 45, 7_200, 90_000)
"""The choices of `SUSPEND`, `SKEW` and `LATER`: below and above a lease's time to live, a day."""


class Killed(BaseException):
    """The process of this task was killed."""


class Violation(BaseException):
    """An invariant does not hold; no handler of the library catches it."""


@dataclass
class Process:
    """A process on a machine of its own.

    Attributes:
        clock: the seconds by which its clock is ahead.
        until: the time until which it is suspended.
    """

    name: str
    clock: float = 0.0
    until: float = 0.0
    dead: bool = False


class Task:
    """A thread of a process; it continues if `ready` returns True, or at the time `wake`."""

    def __init__(
        self, name: str, process: Process, run: Callable[[], object], hub: greenlet
    ) -> None:
        self.name, self.process = name, process
        self.points = 0
        self.ready: Callable[[], bool] = lambda: True
        self.wake: float | None = None
        self.greenlet = greenlet(run, hub)  # it returns to `hub` at its end


@dataclass
class Odds:
    """The probabilities and kinds of faults at a point.

    Attributes:
        switch: the probability that another task continues.
        fault: the probability of a fault.
        kinds: the possible faults.
        kills: the highest number of killed processes.
    """

    switch: float = 0.0
    fault: float = 0.0
    kinds: tuple[str, ...] = ()
    kills: int = 2


@dataclass
class Scheduler:
    """The scheduler: it draws decisions with a seed, or replays recorded ones.

    Attributes:
        seed: determines all ids, and all decisions unless `replayed` has them.
        odds: the probabilities of switches and faults.
        replayed: the decisions to repeat; None draws them.
        now: the seconds since `START`, by the clock of the store.
        made: the decisions so far, other than to continue.
        quiet: whether nothing is disturbed any more.
    """

    seed: int
    odds: Odds = field(default_factory=Odds)
    replayed: Mapping[Key, Decision] | None = None
    now: float = 0.0
    made: dict[Key, Decision] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    current: Task | None = None
    points: int = 0
    quiet: bool = False
    trace: Callable[[str], None] | None = None
    detailed: bool = False
    on_kill: Callable[[Process], None] = lambda _process: None

    def __post_init__(self) -> None:
        self._random = random.Random(f"decisions {self.seed}")
        self.ids = random.Random(f"ids {self.seed}")
        self._hub = getcurrent()
        self._started = 0
        self._kills = 0
        self._next: Task | None = None

    @property
    def process(self) -> Process:
        """The running process."""
        assert self.current is not None
        return self.current.process

    def log(self, text: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace(f"{self.now:10.2f} {text}")

    def start(self, process: Process, run: Callable[[], object], name: str = "") -> Task:
        """Add a task to a process."""
        self._started += 1
        task = Task(name or f"{process.name}.{self._started}", process, run, self._hub)
        self.tasks.append(task)
        return task

    def run(self) -> None:
        """Run until every task has ended."""
        self._hub = getcurrent()
        while self.tasks:
            self.current = task = self._choose()
            task.ready, task.wake = (lambda: True), None
            try:
                task.greenlet.switch()
            except Killed:
                pass
            finally:
                self.current = None
            if task.greenlet.dead and task in self.tasks:
                self.tasks.remove(task)
            self._bury()

    def _bury(self) -> None:
        """Unwind the tasks of killed processes; their calls to the store fail."""
        for task in [one for one in self.tasks if one.process.dead]:
            self.tasks.remove(task)
            self.current = task
            try:
                while not task.greenlet.dead:
                    task.greenlet.throw(Killed)
            except Killed:
                pass
            self.current = None

    def _choose(self) -> Task:
        if (wanted := self._next) is not None:
            self._next = None
            return wanted
        while not (found := self.runnable()):
            times = [max(t.wake, t.process.until) for t in self.tasks if t.wake is not None]
            times += [t.process.until for t in self.tasks if t.ready()]
            later = [time for time in times if time > self.now]
            if not later:
                raise Violation(f"deadlock: {', '.join(task.name for task in self.tasks)} wait")
            self.now = min(later)
        kind, place = self._decide("hub", SWITCH if len(found) > 1 else None, len(found))
        return found[place % len(found)] if kind else found[0]

    def runnable(self) -> list[Task]:
        """Return the tasks that can continue."""
        return [
            task
            for task in self.tasks
            if task.process.until <= self.now
            and (task.ready() or (task.wake is not None and task.wake <= self.now))
        ]

    def _decide(self, who: str, kind: str | None, choices: int) -> Decision:
        self._hub_points = getattr(self, "_hub_points", 0) + 1
        key = (who, self._hub_points)
        if self.replayed is not None:
            return self.replayed.get(key, ("", 0))
        place = self._random.randrange(choices)
        if kind is None or place == 0 or self.quiet:
            return ("", 0)
        self.made[key] = (kind, place)
        return (kind, place)

    def point(self, kinds: tuple[str, ...], *request: str) -> str:
        """Decide at a point of the current task, before its effect.

        Args:
            kinds: the faults that are possible here.
            request: the request, for the log.

        Returns:
            The fault that the caller must cause; empty for none.
        """
        task = self.current
        if task is None or task.process.dead:
            raise Killed
        task.points += 1
        self.points += 1
        self.now += 0.01
        if self.points > MOST_POINTS:
            raise Violation("the schedule does not end")
        kind, place = self._drawn((task.name, task.points), kinds)
        if self.detailed or kind:
            self.log(f"{task.name} {task.points}: {' '.join(request)} {kind}")
        if kind == SWITCH:
            self._switch(place)
        elif kind == KILL:
            self.kill(task.process)
        elif kind == SUSPEND:
            task.process.until = self.now + SECONDS[place % 2]
            self.pause()
        elif kind == SKEW:
            task.process.clock += (-1) ** place * SECONDS[place % len(SECONDS)]
        elif kind == LATER:
            self.now += SECONDS[place % len(SECONDS)]
            self._switch(place)
        else:
            return kind
        return ""

    def _drawn(self, key: Key, kinds: tuple[str, ...]) -> Decision:
        if self.replayed is not None:
            return ("", 0) if self.quiet else self.replayed.get(key, ("", 0))
        draw = self._random.random()
        if self.quiet or draw >= self.odds.switch + self.odds.fault:
            return ("", 0)
        place = self._random.randrange(60)
        kind = SWITCH
        if draw < self.odds.fault:
            able = [kind for kind in self.odds.kinds if kind in kinds]
            if not able:
                return ("", 0)
            kind = self._random.choice(able)
            if kind in (KILL, KILL_AFTER):
                if self._kills == self.odds.kills:
                    return ("", 0)
                self._kills += 1
        self.made[key] = (kind, place)
        return (kind, place)

    def _switch(self, place: int) -> None:
        others = [task for task in self.runnable() if task is not self.current]
        if others:
            self._next = others[place % len(others)]
            self.pause()

    def switch(self) -> None:
        """Let another task run, if one can."""
        self._switch(self.points)

    def pause(self) -> None:
        """Return to the hub until this task is chosen again."""
        task = self.current
        assert task is not None
        self._hub.switch()
        self.current = task
        if task.process.dead:
            raise Killed

    def kill(self, process: Process) -> None:
        """Kill a process; the current task ends if it belongs to it."""
        process.dead = True
        self.on_kill(process)
        if self.current is not None and self.current.process is process:
            raise Killed

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until a condition holds, or for some seconds; return whether it holds."""
        task = self.current
        if not ready():
            if task is None or task.process.dead:
                raise Killed
            task.ready = ready
            task.wake = None if seconds is None else self.now + max(0.0, seconds)
            self.pause()
        return ready()


class World:
    """Holder of the current run's scheduler, for the replacements below."""

    scheduler: Scheduler


def _running() -> Scheduler:
    return World.scheduler


class Clock(type):
    """A metaclass that makes each `datetime` an instance of its replacement."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, dt.datetime)


class SimulatedDatetime(dt.datetime, metaclass=Clock):
    """A `datetime` whose `now` is the clock of the running process."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        """Return the current time of the machine."""
        scheduler = _running()
        skew = scheduler.current.process.clock if scheduler.current else 0.0
        return START + dt.timedelta(seconds=scheduler.now + skew)


class SimulatedTime:
    """The module `time`, as far as the library uses it."""

    @staticmethod
    def monotonic() -> float:
        """Return the seconds since the start."""
        return _running().now

    @staticmethod
    def time() -> float:
        """Return the seconds since 1970 by the clock of the machine."""
        return float(SimulatedDatetime.now().timestamp())

    @staticmethod
    def time_ns() -> int:
        """Return the nanoseconds since 1970 by the clock of the machine."""
        return int(SimulatedTime.time() * 1e9)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Let others run for some seconds."""
        _running().wait(lambda: False, seconds)


class Event:
    """A `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Set the flag."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return the flag."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag."""
        return _running().wait(self.is_set, timeout)


class Lock:
    """A `threading.Lock`, used as a context manager."""

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        _running().wait(lambda: not self._held)
        self._held = True

    def __exit__(self, *_error: object) -> None:
        self._held = False


class Thread:
    """A `threading.Thread` of the running process."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...], daemon: bool) -> None:
        self._run = lambda: target(*args)

    def start(self) -> None:
        """Start the thread."""
        self._task = _running().start(_running().process, self._run)

    def join(self) -> None:
        """Wait for its end."""
        _running().wait(lambda: self._task.greenlet.dead)


class Asyncio:
    """The module `asyncio`, as far as the library uses it."""

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Let others run for some seconds."""
        SimulatedTime.sleep(seconds)


async def run_in_threadpool(do: Callable[..., Any], *args: Any) -> Any:
    """Call a function."""
    return do(*args)


def finish(request: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Run a coroutine that never waits for a loop."""
    try:
        request.send(None)
    except StopIteration as done:
        answer: _Answer = done.value
        return answer
    raise AssertionError("it waits")


class Threading:
    """The module `threading`, as far as the library uses it."""

    Event, Lock, Thread = Event, Lock, Thread


class Pool:
    """A `ThreadPoolExecutor`: `submit` starts a thread, `map` runs one call after the other."""

    def __init__(self, _workers: int | None = None) -> None:
        self._futures: list[Future[Any]] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_error: object) -> None:
        wait(self._futures)

    def submit(self, do: Callable[..., Any], *args: Any) -> Future[Any]:
        """Start a call."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(do(*args))
            except Exception as error:
                future.set_exception(error)

        self._futures.append(future)
        _running().start(_running().process, run)
        return future

    @staticmethod
    def map(do: Callable[..., Any], *items: Any) -> Any:
        """Yield the results of calls."""
        return iter([do(*some) for some in zip(*items, strict=False)])


@dataclass
class Waited:
    """The result of `concurrent.futures.wait`."""

    done: list[Future[Any]]


def wait(futures: Any, timeout: float | None = None) -> Waited:
    """Wait for all futures."""
    some = list(futures)
    _running().wait(lambda: all(future.done() for future in some), timeout)
    return Waited([future for future in some if future.done()])

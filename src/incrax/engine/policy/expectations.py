"""How often kinds of change will come, and what a plan saves, before this process has seen it.

A user says so (`Tuning.calls`, `Tuning.changing`), or an earlier process of the same program on the
same machine has left it in the cache folder: a job is expected to be like the last one. Ski rental
then need not wait until the calls so far would have repaid a compilation. Where nothing came of
looking at calls, that is put off, and the function is not analysed (`calls_without_look`).

In: `Facts`, hints, the file of this program. Out: `Known` for a dirty set, and at the end of the
process the file. It says what is worth compiling, never what is right.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import math
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, TypeAlias

from incrax import _cache_folder
from incrax._jax import Var
from incrax._program import Program
from incrax._tuning import Tuning
from incrax.engine.compile.timing import TimedProgram
from incrax.engine.inputs.paths import each_mask, paths_mask
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import RowKind
from incrax.engine.policy.candidates import MIN_GAIN, UPKEEP_S, Entry, Known
from incrax.engine.policy.ledger import Ledger, calls_worth
from incrax.engine.policy.log import Journal

LEAST_S = 0.01
"""Seconds in the whole program from which on a job is worth a file."""

LONGER = 2
"""Times the calls of a job in which nothing paid, after which the next one is taken for another."""

MAX_KINDS = 256
"""Of change, of one program, in a file: those that came most often."""

MAX_WRITTEN = 100
"""Files that a process writes: of the programs whose functions went last, or are there."""

HINTED_CALLS = 1000
"""Of each kind of change that a user names without a number."""

RARE = 0.1
"""Of the calls of a dirty set: what changes in fewer makes a value stale too seldom to count."""


NOTHING = Known(0)

Kind: TypeAlias = int | RowKind
"""Of change: a dirty set, or a number of rows of some inputs."""


class Idle(NamedTuple):
    """How many calls after the first need not be looked at, nor the function be analysed; seconds of
    each.
    """

    num_calls: int
    whole_s: float = math.inf


NOT_IDLE = Idle(0)


@dataclass(eq=False)
class Expectations:
    """Of one engine, whose entries and whole program it reads."""

    facts: Facts
    tuning: Tuning
    journal: Journal
    entries: Mapping[int, Entry]
    row_entries: Mapping[RowKind, Entry]
    whole: TimedProgram
    ledger: Ledger
    is_kept: bool  # files are read and written
    whole_s: float | None = None  # of the whole program in earlier processes; None: not known
    compile_s: float = 0.0  # to compile it there
    num_calls: int = 0  # there
    is_divided: bool = False  # segments serve kinds in turns, though the function is large

    def __post_init__(self) -> None:
        self.is_kept = self.is_kept and is_remembered(self.tuning)
        self._key = ""
        self._layout = self.journal.layout
        self._is_algebra = self.facts.algebra.is_on
        self._hinted = hinted(self.facts, self.journal.paths, self.tuning)
        self._known: dict[Kind, Known] = {}
        # Of functions like this one, until it is asked what they know.
        self.kin: Iterable[Expectations] = ()
        _living[id(self)] = weakref.ref(self)

    def of(self, kind: Kind) -> Known:
        """What is known of a kind of change; the file is read at the first that is not all inputs."""
        if (self.is_kept or self.kin) and not self._key and kind != self.facts.everything:
            self._read()
        known = self._known.get(kind, NOTHING)
        return known._replace(calls=max(known.calls, self._hinted.get(kind, 0)))

    def is_lost(self, known: Known) -> bool:
        """Whether calls of a kind came, and a plan had nothing to win for them."""
        whole_s = self.whole_s
        if whole_s is None or not known.calls:
            return False
        return whole_s - known.plan_s < MIN_GAIN * whole_s + UPKEEP_S and known.plan_s < math.inf

    def compiled_row_kinds(self) -> list[RowKind]:
        """Changes of rows that had a program in earlier processes."""
        compiled = [kind for kind, known in self._known.items() if known.was_compiled]
        return [kind for kind in compiled if isinstance(kind, RowKind)]

    @property
    def kinds(self) -> list[int]:
        """The dirty sets of which something is known."""
        known = dict.fromkeys([*self._hinted, *self._known])
        return [kind for kind in known if isinstance(kind, int)]

    def moving(self, beside: int | None = None) -> int:
        """The bits of all inputs that changed so far, but in the first call, or in earlier processes;
        beside a dirty set, of those that change in kinds of at least `RARE` times as many calls.
        """
        least = 0.0 if beside is None else RARE * self.calls_of(beside)
        is_first = lambda dirty: dirty == self.facts.everything and self.calls_of(dirty) <= 1
        seen = dict.fromkeys([*self.kinds, *self.entries])
        known = [d for d in seen if self.calls_of(d) >= least and not is_first(d)]
        for kind, entry in self.row_entries.items():
            if entry.count >= least:
                known += map(self._layout.leaf_mask, kind.leaves)
        return reduce(or_, known, 0)

    def gain_s(self, whole_s: float) -> float:
        """Seconds that a call gained there by what was compiled, where the whole program takes so many,
        as long as the job is no longer than it was there.
        """
        if self.ledger.num_calls >= self.num_calls:
            return 0.0
        compiled = [known for known in self._known.values() if known.was_compiled]
        gained_s = sum(known.calls * max(whole_s - known.plan_s, 0.0) for known in compiled)
        return gained_s / self.num_calls

    def calls_of(self, dirty: int) -> int:
        """Of a dirty set, here or in an earlier process."""
        here = self.entries[dirty].count if dirty in self.entries else 0
        return max(here, self.of(dirty).calls)

    @functools.cached_property
    def clean_calls(self) -> float:
        """Calls in earlier processes of what had programs there, each times the share of the work that it
        leaves clean.
        """
        kinds = [(kind, x.calls) for kind, x in self._known.items() if x.was_compiled]
        share = self.facts.clean_share
        return sum(calls * share(kind) for kind, calls in kinds if isinstance(kind, int))

    @functools.cached_property
    def num_families(self) -> float:
        """How many families of changes came in turns in earlier processes, each as often as its calls say."""
        known = [self.of(dirty) for dirty in self.kinds]
        squares = sum(each.calls * max(each.calls, each.kin_calls) for each in known)
        return sum(each.calls for each in known) ** 2 / squares if squares else 1.0

    @functools.cached_property
    def _program(self) -> str:
        return f"{fingerprint(self.facts)} {self._layout.full:x}"

    def _read(self) -> None:
        facts = self.facts
        full = self._layout.full
        for other in self.kin:
            if other.whole.seconds is None:
                continue
            self.whole_s = other.whole.seconds
            self.compile_s = other.whole.first_s
            self.is_divided |= other.is_divided
            self._known.update(other._learned())
            self._known.pop(self.facts.everything, None)
        self.kin = ()
        self._key = key_of(facts.digest, self.tuning, self._is_algebra)
        data = _cache_folder.load(self._key) if self.is_kept else None
        try:
            if data is None or data["program"] != self._program:
                return
            found = {_kind(k): _known(v) for k, v in data["kinds"].items()}
            whole_s = _seconds(data["whole_s"])
            compile_s = _seconds(data["compile_s"])
            num_calls = int(data["calls"])
            is_divided = data["divided"] is True
        except _cache_folder.UNUSABLE as error:
            _cache_folder.ignore(self._key, error)
            return
        self.whole_s = whole_s
        self.compile_s = compile_s
        self.num_calls = num_calls
        self.is_divided = is_divided
        is_none = lambda kind: isinstance(kind, int) and not 0 < kind < full
        self._known = {kind: x for kind, x in found.items() if not is_none(kind)}

    def _learned(self) -> dict[Kind, Known]:
        """What was learned of kinds of change, once the whole program was timed."""
        whole_s = self.whole.seconds
        entries: dict[Kind, Entry] = {**self.entries, **self.row_entries}
        return {} if whole_s is None else _learned_of(entries, whole_s)

    def collect(self) -> None:
        """Put what this process has learned where it is written from at its end."""
        whole_s = self.whole.seconds
        if not self.is_kept or whole_s is None:
            return
        entries = [*self.entries.values(), *self.row_entries.values()]
        ledger = self.ledger
        found = self._learned()
        # Those that bypassed are in no entry.
        num_calls = max(sum(known.calls for known in found.values()), ledger.verdict.num_calls)
        if num_calls * whole_s < LEAST_S:
            return
        if not self._key:
            self._read()
        whole_s = min(whole_s, ledger.turn_s or math.inf)
        others = [known for kind, known in self._known.items() if kind not in found]
        unseen = ledger.unseen
        pays = _any_pays(entries, unseen) or any(known.was_compiled for known in others)
        for kind, known in found.items():
            calls, kin_calls = int(unseen * known.calls), int(unseen * known.kin_calls)
            found[kind] = known._replace(calls=calls, kin_calls=kin_calls)
        _join(found, self._known)
        found.pop(self.facts.everything, None)
        _pending.pop(self._key, None)  # the latest is the last one
        if len(_pending) >= MAX_WRITTEN:
            _pending.pop(next(iter(_pending)), None)
        _pending[self._key] = {
            "about": f"{self.journal.name}, changes: {len(found)}",
            "program": self._program,
            "calls": num_calls,
            "pays": pays or ledger.unchanged * whole_s > ledger.learning_s,
            "lost_s": ledger.lost_s,
            "whole_s": whole_s,
            "compile_s": max(self.compile_s, self.whole.first_s),
            "divided": self.is_divided,
            "kinds": _most_often(found),
        }

    def __del__(self, is_at_end: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_at_end():  # nothing is written any more, and modules are gone, `sys` too
            return
        _living.pop(id(self), None)
        self.collect()


def is_remembered(tuning: Tuning) -> bool:
    """Whether files are read and written."""
    return tuning.timed and tuning.remember and _cache_folder.folder() is not None


def key_of(digest: str, tuning: Tuning, is_algebra: bool) -> str:
    """The name of the file of a program with this digest."""
    return _cache_folder.key_of("function", (digest, tuning.planner, is_algebra))


def calls_without_look(traced: Program, tuning: Tuning, *, is_algebra: bool) -> Idle | None:
    """Which calls of a traced function need not be looked at: some where nothing came of that in an
    earlier process, and none where a plan served, or would have, had as many calls been expected, or
    where the user lets it compile at once; None where nothing is known.

    A job is taken to be like the last one until it is `LONGER` times as long. One that is another
    loses no more by that than until what was lost by looking would be the share of it that looks
    may take (`calls_worth`): in a job like the last one, that is not before its end.
    """
    if tuning.compile_s or not tuning.timed:
        return NOT_IDLE
    if not is_remembered(tuning):
        return None
    key = key_of(traced.digest, tuning, is_algebra)
    data = _cache_folder.load(key)
    try:
        if data is None:
            return None
        if data["pays"] is not False:
            return NOT_IDLE
        whole_s = _seconds(data["whole_s"])
        affordable = calls_worth(_seconds(data["lost_s"]), whole_s)
        return Idle(min(LONGER * int(data["calls"]), affordable), whole_s)
    except _cache_folder.UNUSABLE as error:
        _cache_folder.ignore(key, error)
        return None


def hinted(facts: Facts, paths: Sequence[str], tuning: Tuning) -> dict[Kind, int]:
    """Calls of each kind of change that a user names.

    Raises:
        UnknownInputError: a name is that of no input.
    """
    masks: list[int] = []
    for group in tuning.changing:
        names = [*group]  # one alone may stand for several
        if len(names) == 1:
            masks += each_mask(paths, facts.layout, names[0])
        else:
            masks.append(paths_mask(paths, facts.layout, names))
    calls = HINTED_CALLS if tuning.calls is None else tuning.calls // max(len(masks), 1)
    return dict.fromkeys([mask | facts.always for mask in masks], calls)


def fingerprint(facts: Facts) -> str:
    """A text that is the same for the same program in another process; two that differ in numbers
    only have one, too.
    """
    program = facts.program
    numbers: dict[Any, int] = {}

    def name(atom: Any) -> str:
        if not isinstance(atom, Var):
            return "number"
        return str(numbers.setdefault(atom, len(numbers)))

    types: dict[Any, str] = {}  # many variables share a type, whose text takes long to make

    def typed(var: Any) -> str:
        text = types.get(var.aval)
        if text is None:
            text = types[var.aval] = var.aval.str_short()
        return f"{name(var)}:{text}"

    lines = [typed(var) for var in (*program.invars, *program.constvars)]
    for eqn in program.eqns:
        reads = " ".join(map(name, eqn.invars))
        writes = " ".join(map(typed, eqn.outvars))
        lines.append(f"{eqn.primitive.name} {reads} > {writes}")
    lines.append(" ".join(map(name, program.outvars)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# --- files ----------------------------------------------------------------------------------------

# Dicts are changed and copied in one step each: a lock might be held when a process forks.
_living: dict[int, weakref.ref[Expectations]] = {}
_pending: dict[str, dict[str, Any]] = {}


def _learned_of(entries: Mapping[Kind, Entry], whole_s: float) -> dict[Kind, Known]:
    """What entries tell the next process."""
    calls = _calls_of_families(entries.values())
    compiled = {entry.family for entry in entries.values() if _has_programs(entry)}
    with_programs = {entry.family for entry in entries.values() if entry.program is not None}
    learning_s = defaultdict[int | None, float](float)
    for entry in entries.values():
        learning_s[entry.family] += entry.learning_s
    found: dict[Kind, Known] = {}
    for kind, entry in entries.items():
        known = _learned(entry, whole_s)
        family = entry.family
        if family is not None:
            is_compiled = family in compiled
            known = known._replace(was_compiled=is_compiled, kin_calls=calls[family])
        took_s = entry.learning_s if family is None else learning_s[family]
        has_program = entry.program is not None or (family is not None and family in with_programs)
        # What segments took says nothing of a program. Where it was not compiled this time, or JAX had
        # kept it, an earlier process tells.
        took_s = max(took_s * has_program, entry.known_price_s)
        found[kind] = known._replace(learning_s=took_s)
    for entry in entries.values():
        if entry.is_for_rows and entry.served_s < whole_s and not entry.is_barred:
            _leave_to_rows(entry, found)
    return found


def _leave_to_rows(rows: Entry, found: dict[Kind, Known]) -> None:
    """Calls that came before there was a program for rows are expected of that alone, not of their
    dirty sets, too, unless these have one: both would be compiled.
    """
    num_before = max(rows.count - rows.uses, 0)
    for kind, known in found.items():
        if isinstance(kind, int) and not (kind & ~rows.dirty or known.was_compiled):
            calls = max(known.calls - num_before, 0)
            kin_calls = max(known.kin_calls - num_before, 0)
            found[kind] = known._replace(calls=calls, kin_calls=kin_calls)


def _calls_of_families(entries: Iterable[Entry]) -> Counter[int | None]:
    calls = Counter[int | None]()
    for entry in entries:
        calls[entry.family] += entry.count
    return calls


def _learned(entry: Entry, whole_s: float) -> Known:
    """What the entry of a dirty set tells by itself; of a program that was timed too seldom to be
    believed, what it promised.
    """
    program = entry.program
    if program is not None and not program.is_measured:
        plan_s = entry.promise_s
    elif program is not None and program.seconds is not None:
        plan_s = program.seconds
    elif entry.candidate == "segments":
        plan_s = entry.seconds.get("segments", math.inf)
    elif entry.is_decided:
        plan_s = whole_s  # nothing to win
    else:
        plan_s = entry.promise_s
    missed = entry.num_missed / (entry.num_asked + 1)
    if plan_s < whole_s:
        plan_s += missed * (whole_s - plan_s)
    return Known(max(entry.count, entry.uses), plan_s, _has_programs(entry))


def _has_programs(entry: Entry) -> bool:
    """Whether something was compiled for it: a program of its own, or segments, which serve others, too."""
    return entry.program is not None or entry.candidate == "segments"


def _any_pays(entries: Collection[Entry], unseen: float) -> bool:
    """Whether a process that expects the calls of these entries, so many times those that were seen, has
    reason to look at some.
    """
    calls = _calls_of_families(entries)
    of = lambda entry: entry.count if entry.family is None else calls[entry.family]
    return any(_pays(entry, unseen * of(entry)) for entry in entries)


def _pays(entry: Entry, num_calls: float) -> bool:
    """The same for one, which has so many calls with its family."""
    if entry.program is not None or entry.candidate == "segments":
        return entry.candidate != "whole"
    is_open = entry.num_paying == math.inf and not entry.is_decided  # was not asked about
    return num_calls > entry.num_paying or (is_open and entry.promise_s < math.inf)


def _join(found: dict[Kind, Known], before: Mapping[Kind, Known]) -> None:
    """With what earlier processes knew: a job that was cut short is no new habit."""
    for kind, known in before.items():
        calls = max(known.calls // 2, found.get(kind, NOTHING).calls)
        found[kind] = found.get(kind, known)._replace(calls=calls)


def _name(kind: Kind) -> str:
    if isinstance(kind, int):
        return f"{kind:x}"
    where = f" within {kind.within}" if kind.within else ""
    return f"{kind.capacity} of {' '.join(map(str, kind.leaves))}{where}"


def _kind(name: str) -> Kind:
    """That of a name; `ValueError` where it is none."""
    if " " not in name:
        return int(name, 16)
    capacity, of, *others = name.split()
    within = int(others.pop()) if "within" in others else 0
    leaves = [int(number) for number in others if number != "within"]
    if of != "of" or not leaves:
        raise ValueError(f"{name} is no name of a change of rows")
    return RowKind(tuple(leaves), int(capacity), within)


def _most_often(found: Mapping[Kind, Known]) -> dict[str, Any]:
    kinds = sorted(found.items(), key=lambda item: -item[1].calls)[:MAX_KINDS]
    return {
        _name(kind): [
            known.calls,
            known.plan_s if known.plan_s < math.inf else None,
            known.was_compiled,
            known.kin_calls,
            known.learning_s,
        ]
        for kind, known in kinds
        if known.calls
    }


def _known(data: Any) -> Known:
    calls, plan_s, was_compiled, kin_calls, learning_s = data
    seconds = math.inf if plan_s is None else _seconds(plan_s)
    took_s = _seconds(learning_s) if learning_s else 0.0
    return Known(int(calls), seconds, was_compiled is True, int(kin_calls), took_s)


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{seconds} is no number of seconds")
    return seconds


def write() -> None:
    """Write what was learned by functions that are gone, and by those that are there."""
    for reference in list(_living.values()):
        expectations = reference()
        if expectations is not None:
            expectations.collect()
            expectations.is_kept = False  # `__del__` has nothing to do
    for key, data in list(_pending.items()):
        _cache_folder.save(key, data)
    if _pending:
        _pending.clear()
        _cache_folder.prune()


atexit.register(write)

"""The page on performance, the log of all targets, and their plots, from results alone: the same
results give the same bytes.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.suite import catalogue, plots, selection
from benchmarks.suite.peers import PEERS
from benchmarks.suite.schema import Line, Result, Table
from benchmarks.suite.selection import JIT, OURS

DOCS = catalogue.FOLDER.parent / "docs"
PAGE = "performance.md"
LOG = "targets.md"
ANALYSES = "analyses.md"
FIGURES = re.compile(r"(?<=<!-- figures -->\n).*(?=<!-- end of figures -->)", re.DOTALL)
"""The part of the page of analyses that is made; all else of it is written by hand."""
OWN_TOOL = "its own tool"
ASSETS = "assets/performance"
CURVES = {
    "Call time against rows": ("mixture, one yield changed", "rows"),
    "Call time against inputs": ("sum of normals, one mean changed", "inputs"),
    "Call time against operations": ("chain, last input changed", "operations"),
}
"""Tables of the curves, with the titles of their panels and the units of their sizes."""
INPUTS_EACH = {"Call time against inputs": 3}
GAIN = f"{JIT} / {OURS}"
AGAIN = "incrax again"
GIVEN = "calls given"
FORMS = {GIVEN: "with `calls=`", AGAIN: "next process"}
"""Other forms of ours, as a table's head has them."""
CREATOR = re.compile(r"matplotlib [\d.]+\S*(?=<)")

ROWS = (
    ("jobs", "slow theory", "40 points of a 12 ms theory, 20 steps of nuisance parameters at each"),
    ("jobs", "single sites, many rows", "1,700 single-site steps of a hierarchical regression"),
    ("jobs", "walk over groups", "2,500 steps of a Metropolis walk over 300 groups"),
    (
        "jobs",
        "mixture, three scans",
        "180 gradients of a mixture: a mean, a yield, a slope is scanned",
    ),
    (
        "jobs",
        "pulsars in turns",
        "1,200 steps of 25 Gaussian processes, one number of one at a time",
    ),
    ("jobs", "small function", "5,000 calls of 0.1 ms, everything moves"),
    ("slices", "45 Cholesky factors, gradient", "one of 45 Gaussian processes moves, gradient"),
    (
        "amplitude",
        "value+grad(couplings), couplings changed, vectorised",
        "couplings of 20 amplitudes move, gradient",
    ),
    ("mixture", "value+grad(8), one yield", "one yield of a mixture moves, gradient"),
    ("mixture", "value+grad(8), all changed", "all 8 parameters of the mixture move, gradient"),
)
"""The table of the page, whole jobs first: benchmark, case, and what it is in words."""
NUM_JOBS = 6
CALLS = (
    *ROWS[NUM_JOBS:],
    ("mixture", "value+grad(8), one mean", "one mean of the mixture moves, gradient"),
    ("mixture", "value, one yield", "one yield of the mixture moves, value"),
    (
        "amplitude",
        "value+grad(couplings), one width changed, unrolled",
        "one width of 20 amplitudes moves, gradient",
    ),
    ("slices", "5e6 rows, one group of 1000", "one of 5,000 group means moves, value, 5e6 rows"),
    ("slices", "factorisation, gradient", "one user of a matrix factorisation moves, gradient"),
    ("slices", "control, soft-max", "one entry of a soft-max moves: everything is reached"),
    ("pure", "chain of 400 steps, 50,000 channels", "400 Metropolis steps in `lax.scan`"),
    (
        "algebra",
        "least squares, 8 parameters, value+grad, 1e+06 rows",
        "least squares, `algebra=True`",
    ),
)
"""The plot of single calls."""

MADE = "<!-- Written by `python -m benchmarks --page` from benchmarks/results/*.json; changes by hand are lost. -->"
INTRO = f"""\
# How much time it saves: jobs, calls, sizes, other libraries

{MADE}

A *job* is timed from its first call to its last result, in a fresh process, with
compiling and everything that incrax learns on the way; a *call* is one of many, when all of that is over. Above 1
incrax is faster than `jax.jit`, below 1 slower. Only ratios carry over to another machine. [Every line that was
measured](targets.md), with its target, machine and date, has a page of its own.
[When not to use it](when_not.md) has more of the rows below 1.
"""
LOG_INTRO = f"""\
# Targets: every line that was measured

{MADE}

What a call costs when little has changed, against `jax.jit` of the whole function and against what an expert hoists by
hand for one kind of change. All figures come from `benchmarks/results`; each has its machine, versions and date. [The
summary](performance.md) has the most telling of them, and plots.

- **Only ratios carry over** to another machine. The forms of a line are timed in one process, call by call in turns; a
  cell has the median with the quartiles in brackets, a ratio above 1 means that incrax is faster.
- Results of all forms are compared with each other before a figure counts.
- A target that was missed is marked **short**, with what was reached; why is in `benchmarks/results/README.md`.
- Figures of a busy machine are marked. Ratios of calls of microseconds suffer most from other programs.

Again on your machine:

    pip install -e .
    python -m benchmarks --list           # what there is, what each needs, how long it takes
    python -m benchmarks --run mixture    # one benchmark; `all` takes more than an hour
    python -m benchmarks --run mixture --only "value, one yield"
    python -m benchmarks --compare benchmarks/results/A.json benchmarks/results/B.json
    python -m benchmarks --page           # both pages, from the results
"""

OTHERS = """\
## Other libraries

Each runs in an environment and a process of its own, which takes turns with ours; both read the same arrays, and their
figures must agree before anything is timed. Ratios are the other library's time over ours.
"""


# --- files ----------------------------------------------------------------------------------------


def make(results: Sequence[Result]) -> dict[str, str]:
    """Both pages and their plots: texts by path below the folder of the documentation."""
    chosen = selection.best(results)
    others = {
        version: selection.best(results, version) for version in selection.jax_versions(results)[1:]
    }
    own = {name: result for name, result in chosen.items() if not name.startswith(selection.PEERS)}
    files: dict[str, str] = {}
    summary = [
        INTRO,
        _rows(own, others),
        _jobs(own, files),
        _calls(own, files),
        _growth(own, files),
        _peers(chosen, files),
        _how(chosen, others),
    ]
    log = [LOG_INTRO, _gains(own.values(), files), _analysis(own, files), _others(chosen)]
    log += [_short(chosen.values()), "## Every benchmark\n"]
    log += [_benchmark(name, result) for name, result in own.items()]
    log += [_not_measured(own), _not_shown(results, chosen)]
    files[PAGE], files[LOG] = map(_joined, (summary, log))
    if "analyses" in own:
        page = (DOCS / ANALYSES).read_text(encoding="utf-8")
        files[ANALYSES] = FIGURES.sub(lambda _: _analyses(own["analyses"]), page)
    return files


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(part.rstrip() + "\n" for part in parts if part)


def differing(files: Mapping[str, str], folder: Path | None = None) -> list[str]:
    """The files that are missing or differ; plots drawn by another version of matplotlib need not
    be the same.
    """
    return [name for name, text in files.items() if not _is_same((folder or DOCS) / name, text)]


def _is_same(path: Path, text: str) -> bool:
    if not path.is_file():
        return False
    found = path.read_text(encoding="utf-8")
    creators = [CREATOR.search(each) for each in (found, text)]
    if all(creators) and len({each[0] for each in creators if each}) > 1:
        return True
    return found == text


def write(files: Mapping[str, str], folder: Path | None = None) -> None:
    """Write all files; plots that no page shows any more are removed."""
    folder = folder or DOCS
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in (folder / ASSETS).glob("*.svg"):
        if f"{ASSETS}/{path.name}" not in files:
            path.unlink()


def _plot(files: dict[str, str], name: str, drawn: str, told: str) -> str:
    """A plot as the page shows it; `told` says what it shows to those who do not see it."""
    files[f"{ASSETS}/{name}.svg"] = drawn
    return f"![{told}]({ASSETS}/{name}.svg)\n"


# --- sections of the page -------------------------------------------------------------------------


def _rows(chosen: Mapping[str, Result], others: Mapping[str, Mapping[str, Result]]) -> str:
    """The table: whole jobs, then calls, with what the next process takes where it was measured,
    and one that is told the number of calls, and with the gains under other versions of JAX.
    """
    lines = [_line(chosen, name, case) for name, case, _ in ROWS]
    forms = [form for form in FORMS if any(line and _gain_of(line, form) for line in lines)]
    rows = [["", "`jax.jit`", "incrax", "times faster", *map(FORMS.__getitem__, forms)]]
    rows[0] += [f"JAX {version}" for version in others]
    for number, (line, (name, case, words)) in enumerate(zip(lines, ROWS, strict=True)):
        if line is None:
            continue
        kind = "job: " if number < NUM_JOBS else "call: "
        seconds = [_duration(line.timings[form].median) for form in (JIT, OURS)]
        elsewhere = [_line(results, name, case) for results in others.values()]
        ratios = [line.ratios[GAIN], *(_gain_of(line, form) for form in forms)]
        ratios += [None if each is None else each.ratios[GAIN] for each in elsewhere]
        rows.append(
            [kind + words, *seconds, *("" if ratio is None else _bold(ratio) for ratio in ratios)]
        )
    return f"## Jobs and calls\n\n{_markdown(rows)}" if len(rows) > 1 else ""


def _line(chosen: Mapping[str, Result], name: str, case: str) -> Line | None:
    """A line of a benchmark that compares with `jax.jit`."""
    found = chosen[name].lines if name in chosen else []
    return next((line for _, line in found if line.case == case and GAIN in line.ratios), None)


def _gain_of(line: Line, form: str) -> float | None:
    """The gain of a job by another form of ours, where that was measured."""
    ratio = line.ratios.get(f"{form} / {OURS}")
    return None if ratio is None else line.ratios[GAIN] / ratio


def _bold(ratio: float) -> str:
    return f"**{plots.factor(ratio)}**" if ratio >= 1.0 else plots.factor(ratio)


def _duration(seconds: float) -> str:
    return plots.duration(float(f"{seconds:.2g}"))


def _jobs(chosen: Mapping[str, Result], files: dict[str, str]) -> str:
    """All jobs, each in a first process and in the next one."""
    jobs = chosen.get("jobs")
    if jobs is None:
        return ""
    bars = []
    for _, line in jobs.lines:
        again = _gain_of(line, AGAIN)
        bars.append(_against_one(line.case, line.ratios[GAIN]))
        if again is not None:
            bars.append(_against_one(f"{line.case}, next process", again))
    slower = [bar.label for bar in bars if bar.ratio < 1.0]
    shown = f"Bar chart of {len(jobs.lines)} whole jobs, each in a first and in a later process: "
    shown += f"{len(bars) - len(slower)} of {len(bars)} end as early as with jax.jit or earlier."
    drawn = plots.bars(bars, "Whole jobs", "time with jax.jit / time with incrax")
    return (
        "## Whole jobs\n\nEach job runs in fresh processes; *next process* finds what the first one "
        "learned. Orange jobs end later than with `jax.jit`.\n\n"
        f"{_plot(files, 'jobs', drawn, shown)}\n{_in_words([line.case for _, line in jobs.lines])}"
    )


def _in_words(cases: Iterable[str]) -> str:
    """What each job does: the docstring of its problem, parsed, so that this page needs no JAX."""
    text = (catalogue.FOLDER / "problems" / "jobs.py").read_text(encoding="utf-8")
    body = ast.parse(text).body
    docs = {
        each.name: " ".join((ast.get_docstring(each) or "").split())
        for each in body
        if isinstance(each, ast.FunctionDef)
    }
    (jobs,) = [each.value for each in body if isinstance(each, ast.AnnAssign)]
    words = {
        name.value: docs[entry.elts[0].id]
        for name, entry in zip(jobs.keys, jobs.values, strict=True)
    }
    rows = [[case, words[case]] for case in cases if case in words]
    return _markdown([["job", "what it does"], *rows]) if rows else ""


def _against_one(label: str, ratio: float) -> plots.Bar:
    """A bar that is blue where incrax is not slower."""
    return plots.Bar(label, ratio, ratio >= 1.0)


def _calls(chosen: Mapping[str, Result], files: dict[str, str]) -> str:
    """Single calls, the largest gain first."""
    found = [(_line(chosen, name, case), words) for name, case, words in CALLS]
    known = [(line.ratios[GAIN], words) for line, words in found if line is not None]
    if not known:
        return ""
    known.sort(reverse=True)
    bars = [_against_one(words.replace("`", ""), ratio) for ratio, words in known]
    shown = f"Bar chart of {len(bars)} kinds of calls, from {plots.factor(bars[0].ratio)} "
    shown += f"({bars[0].label}) to {plots.factor(bars[-1].ratio)} ({bars[-1].label})."
    drawn = plots.bars(bars, "Single calls", "time with jax.jit / time with incrax")
    return (
        "## Single calls\n\nOne call of many, after compiling and learning.\n\n"
        f"{_plot(files, 'calls', drawn, shown)}"
    )


def _analyses(result: Result) -> str:
    """Whole analyses by the tools of their fields, by `jax.jit`, by incrax."""
    rows = [["analysis", *(f"{form}, s" for form in (OWN_TOOL, f"`{JIT}`", OURS))]]
    rows[0] += [f"times faster than {form}" for form in (OWN_TOOL, f"`{JIT}`")]
    for _, line in result.lines:
        name, _, words = line.case.partition(": ")
        link = f"[{name}](../examples/analyses/{name}.py): {words}"
        seconds = [
            f"{line.timings[form].median:.3g}" if form in line.timings else ""
            for form in (OWN_TOOL, JIT, OURS)
        ]
        ratios = [line.ratios.get(f"{form} / {OURS}") for form in (OWN_TOOL, JIT)]
        rows.append([link, *seconds, *("" if r is None else _bold(r) for r in ratios)])
    return f"\n{_markdown(rows)}\n`{_command(result)}`. {selection.measured(result)}\n\n"


def _growth(chosen: Mapping[str, Result], files: dict[str, str]) -> str:
    """How the time of a call grows."""
    curves = chosen.get("curves")
    if curves is None:
        return ""
    panels = [_curve(table) for table in curves.tables if table.title in CURVES]
    shown = "Time of a call (above) and gain over jax.jit (below). "
    shown += ". ".join(map(_told_curve, panels)) + "."
    drawn = plots.curves(panels, "Call time and gain against size")
    return (
        "## Sizes\n\nMore rows of data; more inputs, of which one changes; more operations in front "
        f"of the one that changes.\n\n{_plot(files, 'growth-calls', drawn, shown)}"
    )


def _peers(chosen: Mapping[str, Result], files: dict[str, str]) -> str:
    """Other libraries, as bars."""
    found = [
        (peer.name, line)
        for peer in PEERS
        if (name := f"{selection.PEERS}{peer.name}") in chosen
        for _, line in chosen[name].lines
    ]
    if not found:
        return ""
    bars = [_peer_bar(name, line) for name, line in found]
    behind = [bar.label for bar in bars if bar.ratio < 1.0]
    shown = f"Bar chart of {len(bars)} cases of other libraries, their time over ours. "
    shown += (
        f"Faster than incrax: {'; '.join(behind)}." if behind else "None is faster than incrax."
    )
    drawn = plots.bars(bars, "Other libraries", "time of the other library / time of incrax")
    return (
        "## Other libraries\n\nEach in an environment and a process of its own, taking turns with "
        "ours on the same arrays. [Their versions, and every case](targets.md#other-libraries).\n\n"
        f"{_plot(files, 'peers', drawn, shown)}"
    )


def _how(chosen: Mapping[str, Result], others: Mapping[str, Mapping[str, Result]]) -> str:
    """When, where and in which state of the machine the figures of the page were measured."""
    named = {"jobs", "curves", *(name for name, _, _ in (*ROWS, *CALLS))}
    used = [
        result
        for name, result in chosen.items()
        if name in named or (name.startswith(selection.PEERS) and result.skipped is None)
    ]
    for results in others.values():
        used += [result for name, result in results.items() if name in named]
    again = "Again on your machine: `pip install -e .`, then `python -m benchmarks --run jobs`.\n"
    return f"## How it was measured\n\n{again}\n{_dates(used)}" if used else ""


# --- sections of the log --------------------------------------------------------------------------


def _gains(chosen: Iterable[Result], files: dict[str, str]) -> str:
    """Every line whose target is a factor, as bars."""
    found = selection.gains(chosen)
    num, num_short = selection.num_targets(chosen)
    text = (
        f"## What a change gains\n\n{num} lines have a target, {num_short} of them are short of "
        "one. "
    )
    if not found:
        return text + "No result has a gain as its target.\n"
    names = Counter(map(_label, found))
    again = lambda each: f", table {each.table}" if names[_label(each)] > 1 else ""
    bars = [plots.Bar(_label(each) + again(each), each.ratio, each.check.is_met) for each in found]
    missed = sum(not each.check.is_met for each in found)
    largest = max(found, key=lambda each: each.ratio)
    told = (
        f"Bar chart of {len(found)} lines whose target is a factor over another form: "
        f"{len(found) - missed} reach it, "
        f"{missed} do not. The largest is {plots.factor(largest.ratio)} ({_label(largest)}). "
        "The same figures are in the tables below."
    )
    drawn = plots.bars(
        bars, "Gains over the form of each target", "time of the other form / time of incrax"
    )
    return (
        f"{text}Bars show lines whose target is a factor over another\nform (mostly `jax.jit`); "
        "blue reaches its "
        f"target, orange does not.\n\n{_plot(files, 'gains', drawn, told)}\n"
        f"{_dates(each.result for each in found)}"
    )


def _label(gain: selection.Gain) -> str:
    against = gain.check.ratio.rpartition(" / ")[0]
    shown = "" if against == JIT else f" (against {against})"
    return f"{gain.result.benchmark}: {gain.line.case}{shown}"


def _dates(results: Iterable[Result]) -> str:
    """Machines and dates of a plot that draws on many results."""
    groups: dict[str, list[str]] = {}
    for result in results:
        names = groups.setdefault(selection.measured(result), [])
        if result.benchmark not in names:
            names.append(result.benchmark)
    return "".join(f"- {', '.join(names)}: {told}\n" for told, names in groups.items())


def _curve(table: Table) -> plots.Curve:
    title, axis = CURVES[table.title]
    sizes = [line.figures["size"] * INPUTS_EACH.get(table.title, 1) for line in table.lines]
    forms = [
        name for name in table.lines[0].timings if all(name in line.timings for line in table.lines)
    ]
    return plots.Curve(
        title, axis, sizes, {n: [line.timings[n].median for line in table.lines] for n in forms}
    )


def _told_curve(curve: plots.Curve) -> str:
    gains = [b / a for a, b in zip(curve.seconds[OURS], curve.seconds[JIT], strict=True)]
    return f"{curve.title.capitalize()}, {selection.span(curve.sizes, gains, curve.axis)}"


def _analysis(chosen: Mapping[str, Result], files: dict[str, str]) -> str:
    """Seconds of analysis and planning by the number of equations, one curve per function."""
    result = chosen.get("growth")
    tables = result.tables if result else []
    table = next((each for each in tables if each.title == "Growth with equations"), None)
    if result is None or table is None:
        return ""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for line in table.lines:
        sizes, seconds = found.setdefault(line.case.rpartition(", ")[0], ([], []))
        sizes.append(line.figures["equations"])
        seconds.append(line.figures["analysis"] + line.figures["plan, fast"])
    told = "Time to analyse a program and plan four changes, by the number of its equations."
    for name, (x, y) in found.items():
        told += (
            f" {name}: {x[0]:,.0f} equations {y[0]:.2g} s, {x[-1]:,.0f} equations {y[-1]:.3g} s."
        )
    drawn = plots.lines(
        found, "Analysis and planning against equations", "equations", "analysis and plans"
    )
    return (
        f"## Growth of the analysis\n\n{_plot(files, 'growth-analysis', drawn, told)}\n`{_command(result)}`. "
        f"{selection.measured(result)}\n"
    )


def _others(chosen: Mapping[str, Result]) -> str:
    """Other libraries: what they take on the same problem, or why they were not measured."""
    parts = [OTHERS]
    found = {peer: chosen.get(f"{selection.PEERS}{peer.name}") for peer in PEERS}
    for peer, result in found.items():
        asked = f"{peer.question[:1].upper()}{peer.question[1:]}"
        head = f"### {peer.name}\n\n{asked}. `python -m benchmarks --peers {peer.name}`\n"
        if result is None:
            parts.append(f"{head}\nNot measured yet.\n")
        elif result.skipped is not None:
            parts.append(f"{head}\n**Skipped** on {result.date[:10]}: {result.skipped}\n")
        else:
            parts.append(f"{head}\n{_peer_versions(result, peer.name)}\n\n{_tables(result)}")
    return "\n".join(parts)


def _peer_bar(name: str, line: Line) -> plots.Bar:
    ratio = line.ratios[f"{name} / {OURS}"]
    return plots.Bar(f"{name}: {line.case}", ratio, not line.missed if line.checks else None)


def _peer_versions(result: Result, name: str) -> str:
    theirs = [
        f"{key[len(name) + 2 :]} {text}"
        for key, text in result.versions.items()
        if key.startswith(f"{name}: ")
    ]
    return f"{selection.measured(result)} Their environment: {', '.join(theirs)}."


def _short(chosen: Iterable[Result]) -> str:
    """Every target that was missed."""
    found = selection.short(chosen)
    if not found:
        return "## Targets that are short\n\nNone.\n"
    rows = [["benchmark", "case", "target", "reached", "measured"]]
    for result, _, line in found:
        mark = " (busy)" if result.conditions == "busy" else ""
        for check in line.missed:
            rows.append(
                [
                    result.benchmark,
                    line.case,
                    f"`{check.target}`",
                    check.reached,
                    result.date[:10] + mark,
                ]
            )
    return (
        "## Targets that are short\n\nWhy, line by line: "
        f"`benchmarks/results/README.md`.\n\n{_markdown(rows)}"
    )


def _benchmark(name: str, result: Result) -> str:
    """One benchmark with all of its lines."""
    known = catalogue.by_name().get(name)
    parts = [f"### {name}\n"]
    if known is not None:
        parts.append(f"{known.question} {known.targets}".rstrip() + "\n")
    parts.append(f"`{_command(result)}`. {selection.measured(result)}\n")
    parts.append(_tables(result))
    return "\n".join(parts)


def _command(result: Result) -> str:
    words = [
        "python -m benchmarks --run",
        result.benchmark,
        *([f'--only "{result.only}"'] if result.only else []),
    ]
    if result.options.rounds and "--rounds" in result.options.arguments:
        words += ["--rounds", str(result.options.rounds)]
    return " ".join(words)


def _tables(result: Result) -> str:
    return "\n".join(_table(table, with_title=len(result.tables) > 1) for table in result.tables)


def _table(table: Table, *, with_title: bool) -> str:
    columns = list(dict.fromkeys(name for line in table.lines for name in line.cells))
    has_target = any(line.checks for line in table.lines)
    rows = [["case", *columns, *(["target", "verdict"] if has_target else [])]]
    for line in table.lines:
        cells = [line.case, *(line.cells.get(name, "") for name in columns)]
        rows.append([*cells, *(_verdict(line) if has_target else [])])
    return (f"**{table.title}**\n\n" if with_title else "") + _markdown(rows)


def _verdict(line: Line) -> list[str]:
    targets = ", ".join(f"`{check.target}`" for check in line.checks)
    if line.missed:
        return [targets, f"**short**: {', '.join(check.reached for check in line.missed)}"]
    return [targets, "ok" if line.checks else ""]


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]) + "\n"


def _escaped(text: str) -> str:
    return (
        text.replace("|", "\\|").replace("<", "&lt;")
        if "`" not in text
        else text.replace("|", "\\|")
    )


def _not_measured(own: Mapping[str, Result]) -> str:
    """Benchmarks without a result."""
    names = [f"`{name}`" for name in catalogue.by_name() if name not in own]
    return f"Not measured yet: {', '.join(names)}.\n" if names else ""


def _not_shown(results: Sequence[Result], chosen: Mapping[str, Result]) -> str:
    """Results that are kept, but of which another one is shown, and evidence without a table."""
    others = [
        each for each in results if each.benchmark in chosen and each != chosen[each.benchmark]
    ]
    if not others:
        return ""
    rows = [["benchmark", "measured", "machine", "state"]]
    for each in sorted(others, key=lambda each: (each.benchmark, each.date)):
        rows.append([each.benchmark, each.date, each.machine.get("cpu", ""), each.conditions])
    return f"## Other runs\n\nKept in `benchmarks/results`, not shown above.\n\n{_markdown(rows)}"

"""How often phasewatch says the right cause: on recordings whose fault is known, and on simulated incidents.

    python -m benchmarks.diagnosis [RECORDINGS] [--simulated SEEDS] [--healthy-seeds N] [--interval S] [--step S]

RECORDINGS: a folder of recordings with an expected.json (objectives, stretches to judge, right verdicts, onset); this
repository's where none is named.
Simulated: every kind of tools.simulator x SEEDS; an incident counts only if users felt it (simulator.judge).
A document counts by its leading verdict, or by its state where the verdict is null.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.recorded import RECORDINGS, name_of, named, opened
from phasewatch.core.model import Fleet
from phasewatch.core.pages.exposition import PageReader, parse
from phasewatch.core.settings import Limit, Objectives, Settings, parse_objectives
from phasewatch.core.watch import Watcher
from phasewatch.sources.recording import timeline
from tools.simulator import judge, recording, scenarios, simulation

QUIET = ("healthy", "idle")


@dataclass(frozen=True)
class Stretch:
    """From second to second these answers are right, of an engine of this target or of its model."""

    start: float
    end: float
    accept: tuple[str, ...]
    level: str = "engine"
    target: str | None = None


@dataclass(frozen=True)
class Outcome:
    """One run judged. said: (seconds, label) of the judged engine or model; each stretch with its share of right labels
    and all its labels, of the worst of several engines.
    """

    name: str
    cause: str
    counts: bool
    shares: tuple[tuple[Stretch, float, tuple[str, ...]], ...]
    said: tuple[tuple[float, str], ...]
    onset_delay: float | None
    within: float | None
    false_seconds: float
    clear_seconds: float | None

    @property
    def worst(self) -> float:
        return min((share for _, share, _ in self.shares), default=1.0)


def label_of(fleet: Fleet, stretch: Stretch, engine: int | None = None) -> str:
    """The leading verdict, or the state where the verdict is null, of what the stretch judges."""
    if stretch.level == "model":
        model = fleet.models[0] if fleet.models else None
        return "none" if model is None else model.verdict or max(model.engines, key=lambda state: model.engines[state])
    reports = [one for one in fleet.engines if stretch.target in (None, one.key.target)]
    if not reports:
        return next((one.state for one in fleet.targets if stretch.target in (None, one.target)), "none")
    report = reports[min(engine or 0, len(reports) - 1)]
    return report.verdict or report.state


def verdicts(fleet: Fleet, stretch: Stretch) -> Iterator[str | None]:
    """Of every engine or model that the stretch judges."""
    if stretch.level == "model":
        yield from (one.verdict for one in fleet.models)
    else:
        yield from (one.verdict for one in fleet.engines if stretch.target in (None, one.key.target))


def judged(
    name: str,
    cause: str,
    fleets: Sequence[Fleet],
    stretches: Sequence[Stretch],
    step: float,
    *,
    onset: float | None = None,
    within: float | None = None,
    counts: bool = True,
) -> Outcome:
    """Judge a run: shares, delay, false alarms, time to clear. Of several engines on one page, the worst counts."""
    shares = []
    for stretch in stretches:
        inside = [fleet for fleet in fleets if stretch.start <= fleet.at <= stretch.end]
        engines = max((len(fleet.engines) for fleet in inside), default=1) if stretch.target is None else 1
        worst: tuple[float, tuple[str, ...]] | None = None
        for engine in range(max(engines, 1)):
            labels = [label_of(fleet, stretch, engine) for fleet in inside]
            share = sum(one in stretch.accept for one in labels) / len(labels) if labels else 1.0
            if worst is None or share < worst[0]:
                worst = share, tuple(labels)
        assert worst is not None
        shares.append((stretch, *worst))
    last = stretches[-1]
    said = tuple((fleet.at, label_of(fleet, last)) for fleet in fleets)
    quiet = [one for one in stretches if set(one.accept) <= set(QUIET)]
    false_alarms = sum(
        step
        for stretch in quiet
        for fleet in fleets
        if stretch.start <= fleet.at <= stretch.end
        and any(verdict not in (None, "healthy") for verdict in verdicts(fleet, stretch))
    )
    incident = next((one for one in stretches if one not in quiet), None)
    delay = clear = None
    if onset is not None and incident is not None:
        right = [fleet.at for fleet in fleets if fleet.at >= onset and label_of(fleet, incident) in incident.accept]
        delay = right[0] - onset if right else None
    after = next((one for one in quiet if incident is not None and one.start >= incident.end), None)
    if after is not None and incident is not None:
        calm = [fleet.at for fleet in fleets if fleet.at > incident.end and label_of(fleet, after) in after.accept]
        clear = calm[0] - incident.end if calm else None
    return Outcome(name, cause, counts, tuple(shares), said, delay, within, false_alarms, clear)


def replayed(path: Path, expected: dict[str, Any], interval: float, step: float) -> Outcome:
    """One recording, thinned to about one page per `interval`, evaluated every `step` up to its last page."""
    watcher = Watcher(Settings(objectives=parse_objectives(expected["objectives"])))
    recorded = opened(path)
    entries = list(timeline(recorded))
    first, end = entries[0][0], entries[-1][0]
    fleets: list[Fleet] = []
    readers: dict[str, PageReader] = defaultdict(PageReader)
    at, taken = first + step, {}  # type: tuple[float, dict[str, float]]
    for seconds, target, entry in entries:
        while at < seconds:
            fleets.append(watcher.evaluate(at))
            at += step
        # Pages come a little early or late: half a second is no reason to skip one.
        if seconds - taken.get(target, -interval) < interval - 0.5:
            continue
        taken[target] = seconds
        if entry.reason is not None:
            watcher.failure(target, seconds, entry.reason)
        else:
            watcher.page(target, readers[target].read(entry.read(), at=seconds, content_type=entry.content_type))
    while at < end + step:
        fleets.append(watcher.evaluate(at))
        at += step
    stretches = [Stretch(one["from"], one["to"], tuple(one["accept"])) for one in expected["judge"]]
    cause = "|".join(
        next((one for one in expected["judge"] if set(one["accept"]) - set(QUIET)), expected["judge"][0])["accept"]
    )
    return judged(
        name_of(path), cause, fleets, stretches, step, onset=expected.get("onset"), within=expected.get("within")
    )


def simulated(kind: str, seed: int, interval: float, step: float) -> Outcome:
    """One simulated incident, without wall time."""
    made = scenarios.scenario(kind, seed)
    limits = {name: Limit(seconds, seconds) for name, seconds in made.objectives.items()}
    watcher = Watcher(Settings(objectives=Objectives(limits)))
    fleet = simulation.Fleet(made.config, seed)
    fleets: list[Fleet] = []
    at = step
    for seconds, target, page in recording.pages(fleet, made.duration, interval):
        while at < seconds:
            fleets.append(watcher.evaluate(at))
            at += step
        if isinstance(page, simulation.DownError):
            watcher.failure(target, seconds, "connect")
        else:
            watcher.page(target, parse(page, at=seconds))
    while at <= made.duration:
        fleets.append(watcher.evaluate(at))
        at += step
    several = len(fleet.targets) > 1
    stretches = [
        Stretch(one.start, one.end, one.accept, one.level, one.target if several else None) for one in made.judge
    ]
    return judged(
        f"{kind}/{seed}",
        kind,
        fleets,
        stretches,
        step,
        onset=made.onset or None,
        counts=judge.counts(made, fleet.requests),
    )


def lines(outcome: Outcome) -> Iterator[str]:
    for stretch, share, labels in outcome.shares:
        wrong = Counter(one for one in labels if one not in stretch.accept)
        missed = "" if not wrong else "  wrong: " + ", ".join(f"{n}x {what}" for what, n in wrong.most_common(4))
        where = f"{stretch.start:.0f}-{stretch.end:.0f} s"
        yield f"  {where:<12} {'|'.join(stretch.accept):<44} {share:>5.0%}{missed}"
    course = [(label, [at for at, _ in said]) for label, said in groupby(outcome.said, key=lambda one: one[1])]
    yield "  said: " + ", ".join(f"{label} {next(iter(ats)):.0f}" for label, ats in course)


def summary(outcome: Outcome) -> str:
    delay = "" if outcome.onset_delay is None else f"{outcome.onset_delay:.0f} s"
    within = "" if outcome.within is None else f" (asked: {outcome.within:.0f} s)"
    clear = "" if outcome.clear_seconds is None else f"  clears in {outcome.clear_seconds:.0f} s"
    false = "" if not outcome.false_seconds else f"  FALSE ALARM {outcome.false_seconds:.0f} s"
    return f"{outcome.name}: {outcome.cause}  right in {delay or '-'}{within}{clear}{false}"


def confusion(outcomes: Sequence[Outcome], step: float) -> Iterator[str]:
    """Right answers x what was said, in seconds; only what was ever got wrong, and how much was judged in all."""
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        for stretch, _, labels in outcome.shares:
            said["|".join(stretch.accept)] += Counter("right" if one in stretch.accept else one for one in labels)
    whole = sum(counter.total() for counter in said.values())
    right = sum(counter["right"] for counter in said.values())
    yield f"  {'all':<44} {step * whole:>8,.0f} s judged  right {right / max(whole, 1):.1%}"
    for expected, counter in sorted(said.items(), key=lambda row: row[1]["right"] - row[1].total()):
        wrong = [(what, n) for what, n in counter.most_common() if what != "right"]
        if wrong:
            share = counter["right"] / counter.total()
            told = ", ".join(f"{what} {step * n:,.0f} s" for what, n in wrong)
            yield f"  {expected:<44} {step * counter.total():>8,.0f} s judged  right {share:.1%}; said {told}"


def main(
    recordings: Annotated[Path, typer.Argument(help="Folder of recordings with an expected.json.")] = RECORDINGS,
    simulated_seeds: Annotated[int, typer.Option("--simulated", help="Seeds of each simulated kind.")] = 0,
    first_seed: Annotated[int, typer.Option(help="First seed.")] = 1,
    kinds: Annotated[str, typer.Option(help="Only these simulated kinds, comma separated.")] = "",
    healthy_seeds: Annotated[int, typer.Option(help="Healthy services, of each healthy kind as many.")] = 0,
    interval: Annotated[float, typer.Option(help="Seconds between pages.")] = 2.0,
    step: Annotated[float, typer.Option(help="Seconds between evaluations.")] = 10.0,
    verbose: Annotated[bool, typer.Option("-v", help="Also the runs that are right.")] = False,
) -> None:
    """Score phasewatch's verdicts."""
    expected = json.loads((recordings / "expected.json").read_text())
    with ProcessPoolExecutor() as pool:
        jobs = [pool.submit(replayed, named(recordings, name), one, interval, step) for name, one in expected.items()]
        wanted = [kind for kind in kinds.split(",") if kind] or list(scenarios.KINDS)
        seeds = [(kind, first_seed + n) for kind in wanted for n in range(simulated_seeds)]
        healthy = [
            (scenarios.HEALTHY[n % len(scenarios.HEALTHY)], first_seed + n // len(scenarios.HEALTHY))
            for n in range(healthy_seeds)
        ]
        runs = [pool.submit(simulated, kind, seed, interval, step) for kind, seed in dict.fromkeys(seeds + healthy)]
        recorded = [job.result() for job in jobs]
        made = [run.result() for run in runs]
    print(f"pages every {interval:g} s, evaluations every {step:g} s\n\nRECORDINGS")
    for outcome in recorded:
        print(summary(outcome), *lines(outcome), sep="\n")
    stretches = [share for outcome in recorded for _, share, _ in outcome.shares]
    print(
        f"\n{sum(share >= 0.95 for share in stretches)} of {len(stretches)} stretches right in 95 % or more;", end=" "
    )
    print(f"false alarms: {sum(one.false_seconds for one in recorded):.0f} s")
    print("\nwhat is left: right answers x what was said")
    print(*confusion(recorded, step), sep="\n")
    if not made:
        return
    counted = [outcome for outcome in made if outcome.counts]
    print(f"\nSIMULATED: {len(made)} incidents, {len(counted)} count")
    for outcome in counted:
        if verbose or outcome.worst < 0.95 or outcome.false_seconds:
            print(summary(outcome), *lines(outcome), sep="\n")
    print("\nkind                     counted  top-1 right  share right  delay median  false alarm")
    for kind, group in groupby(sorted(counted, key=lambda one: one.cause), key=lambda one: one.cause):
        of_kind = list(group)
        delays = [one.onset_delay for one in of_kind if one.onset_delay is not None]
        first = sum(map(top1, of_kind))
        print(
            f"{kind:<24} {len(of_kind):>7}  {first:>5} ({first / len(of_kind):>4.0%})"
            f"  {sum(mean_share(one) for one in of_kind) / len(of_kind):>11.1%}"
            f"  {f'{median(delays):.0f} s' if delays else '-':>12}  {sum(one.false_seconds for one in of_kind):>9.0f} s"
        )
    right = sum(top1(one) for one in counted)
    print(f"\ntop-1 right: {right} of {len(counted)} ({right / len(counted):.1%})")
    calm = [outcome for outcome in counted if outcome.cause in scenarios.HEALTHY]
    if calm:
        false = sum(outcome.false_seconds for outcome in calm)
        accused = sum(outcome.false_seconds > 0 for outcome in calm)
        print(f"false alarms of {len(calm)} healthy services: {false:.0f} s, in {accused} of them")
    print("\nwhat is left: right answers x what was said")
    print(*confusion(counted, step), sep="\n")


def mean_share(outcome: Outcome) -> float:
    shares = [share for _, share, _ in outcome.shares]
    return sum(shares) / len(shares) if shares else 1.0


def top1(outcome: Outcome) -> bool:
    """Whether in each stretch the verdict said most often is a right one."""
    return all(share > 0.5 for _, share, _ in outcome.shares)


if __name__ == "__main__":
    try:
        typer.run(main)
    except (OSError, ValueError) as error:
        print(f"diagnosis: {error}", file=sys.stderr)
        sys.exit(2)

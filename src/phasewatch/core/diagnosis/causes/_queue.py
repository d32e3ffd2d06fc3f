"""What the causes of a queue have in common: their score, evidence and the sentence on who waits."""

from phasewatch.core.diagnosis.causes._row import Finding, known
from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.numbers import waiting_for_capacity
from phasewatch.core.measures.phases import mean_of


def has_room(view: WindowView) -> bool:
    """Whether requests wait although the KV cache has room for them."""
    return view.queued and view.kv_limited is False


def used(ratio: float) -> str:
    return "under 1 %" if ratio < 0.01 else percent(ratio)


def queue_finding(
    case: Case, what: str, refuted_by: str, *, who: str | None = None, eliminated: bool = False, low: bool = False
) -> Finding | None:
    """what: the sentence's head, to which who waits, and how long, is added."""
    score = _score(case)
    # Behind steps that compile everybody waits, whatever the limits.
    if score is None or case.cold:
        return None
    return Finding(
        score,
        _evidence(case.view),
        f"{what}{_who_waits(case.view) if who is None else who}",
        refuted_by,
        easing=case.view.waiting_now == 0 and not case.view.no_room_to_land and not case.view.queue_returns,
        eliminated=eliminated,
        at_most="low" if low else "high",
    )


def _score(case: Case) -> float | None:
    """The queue's share of TTFT; an expected wait is queue but for the prefill that follows it."""
    if case.symptom.objective == "expected_wait":
        wait = case.view.numbers.queue.expected_wait_seconds
        return None if not wait else wait / (wait + case.view.ttft_parts.by_phase.get("prefill", 0.0))
    return case.ttft.share("queue")


def _who_waits(view: WindowView) -> str:
    wait, queue = view.numbers.queue.expected_wait_seconds, view.numbers.queue
    if view.waiting_now == 0:
        return ". The queue has drained; requests that queued are still in this window."
    bound = "at least" if queue.expected_wait_censored else "about"
    told = "" if wait is None else f" A new request waits {bound} {seconds(wait)}."
    return f", {number(view.waiting_now)} waiting.{told}"


def _evidence(view: WindowView) -> dict[str, float | str]:
    queue, kv, gauges = view.numbers.queue, view.numbers.kv_cache, view.window.gauges
    waiting = gauges[waiting_for_capacity(view.window)]
    return known(
        waiting_last=waiting.last,
        waiting_mean=waiting.mean,
        waiting_scrapes=float(len(view.queue_pages)),
        scrapes=float(len(view.pages)),
        running_max=view.running_max,
        queue_mean_seconds=mean_of(view.window, "queue"),
        prefill_mean_seconds=mean_of(view.window, "prefill"),
        expected_wait_seconds=queue.expected_wait_seconds,
        arrivals_per_second=queue.arrivals_per_second,
        admissions_per_second=queue.admissions_per_second,
        kv_usage_max=gauges["kv_usage"].max if "kv_usage" in gauges else kv.usage_ratio,
        preemptions=view.window.increases.get("preemptions"),
        prefill_time_ratio=view.numbers.prefill_time_ratio,
    )

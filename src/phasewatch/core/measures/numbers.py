"""Window -> Numbers: every figure that the document and the gauges show. Unknown is None, nothing is judged."""

from math import inf
from typing import Any

from phasewatch.core.measures.ages import Ages
from phasewatch.core.measures.events import capacity_tokens
from phasewatch.core.measures.flows import unbalanced, whole
from phasewatch.core.measures.histogram import edges, in_buckets, mean
from phasewatch.core.measures.phases import computed_prompt_tokens, count_of, mean_of, phases, prefill_time_ratio
from phasewatch.core.measures.quantile import fit_together, latency
from phasewatch.core.measures.window import scrapes
from phasewatch.core.measures.window_arrays import Rows
from phasewatch.core.model import Histogram, KvCache, Latency, Numbers, Queue, Speculation, Tokens, Window
from phasewatch.core.pages.catalog import BOUNDS
from phasewatch.core.settings import Estimator, Thresholds


def numbers(
    window: Window,
    thresholds: Thresholds,
    *,
    stall_seconds: float = 1.0,
    estimator: Estimator = "sums",
    seconds_per_prompt_token: float | None = None,
    step_seconds: float | None = None,
    ages: Ages | None = None,
) -> Numbers:
    """All figures of one window of one engine. stall_seconds: gaps longer than this are stalls (objective itl_stall).

    seconds_per_prompt_token, step_seconds: of the engine's own past, where it has any (phases.prefill_time_ratio).
    ages: of its requests in flight as of the window's last page.
    """
    return Numbers(
        **_added(window, thresholds, stall_seconds, estimator),
        queue=Queue(**_flow(window), **_own_flow(window), **_oldest(ages)),
        kv_cache=_kv_cache(window),
        prefill_time_ratio=prefill_time_ratio(window, seconds_per_prompt_token, step_seconds),
    )


def family_numbers(
    window: Window, family: str, *, stall_seconds: float = 1.0, estimator: Estimator = "sums"
) -> Numbers:
    """What one family's objectives are judged by, and nothing else."""
    one = _tpot(window, estimator) if family == "tpot" else _latency(window, family, estimator)
    stalled = stalled_ratio(window.histograms.get("itl"), stall_seconds) if family == "itl" else None
    latencies: dict[str, Any] = {f"{family}_seconds": one}
    return Numbers(window.seconds, **latencies, itl_stalled_ratio=stalled)


def pooled_numbers(
    window: Window, thresholds: Thresholds, *, stall_seconds: float = 1.0, estimator: Estimator = "sums"
) -> Numbers:
    """Of several engines' windows as one: what follows from their buckets and counters added up. All else is each
    engine's own."""
    return Numbers(
        **_added(window, thresholds, stall_seconds, estimator),
        queue=Queue(**_flow(window)),
        kv_cache=KvCache(preemptions_per_second=_rate(window, "preemptions")),
    )


def _added(window: Window, thresholds: Thresholds, stall_seconds: float, estimator: Estimator) -> dict[str, Any]:
    """The fields of Numbers that are of buckets and counters only."""
    tpot = _tpot(window, estimator)
    ttft, itl, e2e = (_latency(window, family, estimator) for family in ("ttft", "itl", "e2e"))
    fit_together((ttft, itl, tpot, e2e))
    return {
        "window_seconds": window.seconds,
        "ttft_seconds": ttft,
        "itl_seconds": itl,
        "tpot_seconds": tpot,
        "e2e_seconds": e2e,
        "itl_stalled_ratio": stalled_ratio(window.histograms.get("itl"), stall_seconds),
        "phases": phases(window, thresholds),
        "tokens": _tokens(window, tpot.mean),
        "speculation": _speculation(window),
    }


def ratio(part: float | None, whole: float | None) -> float | None:
    """A part of a whole. None where either is unknown, the whole is nothing, or the part is no part of it: a ratio
    outside 0 to 1 is a contradiction, not a number."""
    if part is None or not whole:
        return None
    return BOUNDS["ratio"].believed(part / whole)


def amount(value: float | None) -> float | None:
    """A count, a time, a rate or a speed: 0 or more and finite, else unknown."""
    return value if value is not None and 0 <= value < inf else None


def _latency(window: Window, name: str, estimator: Estimator) -> Latency:
    histogram = window.histograms.get(name)
    if histogram is None:
        return Latency(0)
    if estimator != "sums":
        return latency(histogram)
    rows: Rows | None = None if window.rows is None else window.rows(name)
    if rows is not None:
        return latency(histogram, rows)
    parts = [step.histograms.get(name) for step in window.steps]
    return latency(histogram, [part for part in parts if part is not None])


def _tpot(window: Window, estimator: Estimator) -> Latency:
    """Before 0.11 there is no TPOT histogram: its mean over tokens is decode seconds / (tokens - requests)."""
    if "tpot" in window.histograms:
        return _latency(window, "tpot", estimator)
    decode, output = window.histograms.get("decode"), window.histograms.get("output_length")
    if decode is None or output is None or decode.total is None or output.total is None:
        return Latency(0)
    gaps = output.total - output.count
    known = gaps > 0 and mean(decode) is not None and mean(output) is not None
    return Latency(round(decode.count), amount(decode.total / gaps) if known else None)


def stalled_ratio(itl: Histogram | None, stall_seconds: float) -> float | None:
    """Share of the streaming time spent in gaps longer than stall_seconds: gaps x low bucket edge / ITL sum.

    None where no gap was seen, or the page has no sum or one that its buckets contradict.
    """
    if itl is None or mean(itl) is None:
        return None
    stalled = sum(
        count * edges(itl, at)[0] for at, count in enumerate(in_buckets(itl)) if edges(itl, at)[0] >= stall_seconds
    )
    return ratio(stalled, itl.total)


def waiting_for_capacity(window: Window) -> str:
    """The signal that says who waits for room: deferred requests (remote KV, grammar, LoRA) are no overload."""
    return "waiting_capacity" if "waiting_capacity" in window.gauges else "waiting"


def _rate(window: Window, name: str) -> float | None:
    return _per(window.increases.get(name), window.seconds)


def _per(value: float | None, whole: float | None) -> float | None:
    """So much a second, a request, a step."""
    return None if value is None or not whole else amount(value / whole)


def _flow(window: Window) -> dict[str, Any]:
    """The fields of Queue that are of buckets, counters and the requests that wait now."""
    wait, censored = expected_wait(window)
    return {
        "admissions_per_second": _per(
            window.histograms["ttft"].count if "ttft" in window.histograms else None, window.seconds
        ),
        "expected_wait_seconds": wait,
        "expected_wait_censored": censored,
        "failed_per_second": _per(failures(window), window.seconds),
    }


def _own_flow(window: Window) -> dict[str, Any]:
    """The fields of Queue that are of one engine's pages in time."""
    gauges, capacity = window.gauges, waiting_for_capacity(window)
    running, waiting, deferred = (gauges.get(name) for name in ("running", "waiting", "waiting_deferred"))
    gave_up, before_first = gave_up_ratios(window)
    return {
        "running": None if running is None else running.last,
        "waiting": None if waiting is None else waiting.last,
        "waiting_deferred": None if deferred is None else deferred.last,
        "growth_per_second": slope(window, capacity) if capacity in gauges else None,
        "arrivals_per_second": arrivals_per_second(window),
        "gave_up_ratio": gave_up,
        "gave_up_before_first_token_ratio": before_first,
    }


def _oldest(ages: Ages | None) -> dict[str, Any]:
    if ages is None:
        return {}
    return {"oldest_unanswered_seconds": ages.oldest_unanswered, "oldest_running_seconds": ages.oldest_running}


def expected_wait(window: Window) -> tuple[float | None, bool | None]:
    """(seconds, censored): waiting / admissions per second; with none admitted, waiting x window as a lower bound."""
    waiting = window.gauges.get(waiting_for_capacity(window))
    if waiting is None or "ttft" not in window.histograms or window.seconds <= 0:
        return None, None
    admitted = window.histograms["ttft"].count
    if waiting.last == 0:
        return 0.0, False
    if admitted == 0:
        return waiting.last * window.seconds, True
    return waiting.last * window.seconds / admitted, False


def in_flight_change(window: Window) -> float | None:
    """By how much running + waiting grew over the window; None where a page lacks either. What a restart threw away
    did not finish: only those that the new process has count since then."""
    names = ("running", "waiting")
    nobody = dict.fromkeys(names, 0.0)
    before = [nobody if one.restarted else one.before for one in window.steps]
    try:
        changes = [one.after[name] - old[name] for one, old in zip(window.steps, before, strict=True) for name in names]
    except KeyError:
        return None
    return sum(changes)


def arrivals_per_second(window: Window) -> float | None:
    change, finished = in_flight_change(window), window.increases.get("finished")
    if change is None or finished is None or window.seconds <= 0 or unbalanced(window) is not None:
        return None
    return max(0.0, max(finished, window.increases.get("http_finishes", 0.0)) + change) / window.seconds


def gave_up_ratios(window: Window) -> tuple[float | None, float | None]:
    """(all, before the first token) as shares of the HTTP finishes.

    gave up = 2xx finishes - request_success; before the first token = 2xx finishes - first tokens - running at the
    window's start. None without HTTP counters, or where one call carries several prompts, across a restart or a page
    that lacks a part, and where flows do not add up.
    """
    increases = window.increases
    http, good, finished = (increases.get(name) for name in ("http_finishes", "http_2xx", "finished"))
    if http is None or good is None or finished is None or finished > http or "ttft" not in window.histograms:
        return None, None
    if http == 0:
        return 0.0, 0.0
    if not whole(window, ("http_finishes", "http_2xx", "finished"), ("ttft",)) or unbalanced(window) is not None:
        return None, None
    running = scrapes(window)[0].get("running", 0.0)
    before_first = good - window.histograms["ttft"].count - running
    return ratio(max(0.0, good - finished), http), ratio(max(0.0, before_first), http)


def failures(window: Window) -> float | None:
    """Requests that failed: 5xx answers, or error finishes and rejections (a rejection is a 503 as well)."""
    increases = window.increases
    known = [increases[name] for name in ("http_5xx", "finished_error", "rejections") if name in increases]
    if not known:
        return None
    return max(increases.get("http_5xx", 0.0), increases.get("finished_error", 0.0) + increases.get("rejections", 0.0))


def failed_transfers(window: Window) -> float:
    """KV transfers between engines that failed, or whose blocks were not collected in time."""
    names = ("kv_failed_transfers", "kv_failed_notifications", "kv_failed_loads", "kv_expired")
    return sum(window.increases.get(name, 0.0) for name in names)


def slope(window: Window, name: str) -> float | None:
    """Least-squares change of a gauge per second over the window's scrapes; None with fewer than three."""
    start, first = window.steps[0].start, window.steps[0].before
    known = [(one.end - start, one.after[name]) for one in window.steps if name in one.after]
    if name in first:
        known.append((0.0, first[name]))
    count = len(known)
    if count < 3:
        return None
    # Told from the first value on, a gauge that stands still has a slope of exactly 0, and no rounding error.
    known = [(at, value - known[0][1]) for at, value in known]
    mean_at = sum([at for at, _ in known]) / count
    mean_value = sum([value for _, value in known]) / count
    spread = sum([(at - mean_at) ** 2 for at, _ in known])
    return sum([(at - mean_at) * (value - mean_value) for at, value in known]) / spread if spread > 0 else None


def _kv_cache(window: Window) -> KvCache:
    usage = window.gauges.get("kv_usage")
    growth = None if usage is None else slope(window, "kv_usage")
    filling = usage is not None and growth is not None and growth > 0
    capacity = capacity_tokens(window.steps[-1].after)
    return KvCache(
        usage_ratio=None if usage is None else usage.last,
        capacity_tokens=capacity,
        preemptions_per_second=_rate(window, "preemptions"),
        time_to_full_seconds=amount((1 - usage.last) / growth) if filling and usage and growth else None,
        free_tokens=None if usage is None or capacity is None else (1 - usage.last) * capacity,
    )


def _tokens(window: Window, tpot: float | None) -> Tokens:
    computed = computed_prompt_tokens(window)
    first = count_of(window, "ttft")
    prompt_mean = _length(window, "prompt_length", "prompt_tokens")
    output_mean = mean_of(window, "output_length")
    prefill, lengths = window.histograms.get("prefill"), window.histograms.get("computed_prompt_length")
    comparable = mean_of(window, "prefill") is not None and mean_of(window, "computed_prompt_length") is not None
    return Tokens(
        prompt_per_second=_rate(window, "prompt_tokens"),
        computed_prompt_per_second=_per(computed, window.seconds),
        generation_per_second=_rate(window, "generation_tokens"),
        prefix_hit_ratio=_reuse(window),
        prompt_mean=prompt_mean,
        computed_prompt_mean=_per(computed, first),
        output_mean=output_mean,
        context_mean=None if prompt_mean is None or output_mean is None else prompt_mean + output_mean / 2,
        prefill_speed=_per(lengths.total, prefill.total) if comparable and lengths and prefill else None,
        decode_speed=_per(1.0, tpot),
    )


def _reuse(window: Window) -> float | None:
    """Share of the prompt tokens asked for that came from a cache, this engine's or an external one.

    Of the external counters only the hits are used: some versions count its queries for the whole prompt.
    """
    hits, queries = window.increases.get("prefix_hits"), window.increases.get("prefix_queries")
    if hits is None or not queries:
        return None
    return ratio(hits + window.increases.get("external_prefix_hits", 0.0), queries)


def _length(window: Window, histogram: str, counter: str) -> float | None:
    """Mean tokens a request: of those that finished, else tokens counted / first tokens."""
    known = mean_of(window, histogram)
    return known if known is not None else _per(window.increases.get(counter), count_of(window, "ttft"))


def _speculation(window: Window) -> Speculation:
    accepted, drafts = window.increases.get("spec_accepted_tokens"), window.increases.get("spec_drafts")
    per_draft = _per(accepted, drafts)
    return Speculation(
        acceptance_ratio=ratio(accepted, window.increases.get("spec_draft_tokens")),
        mean_accepted_length=None if per_draft is None else 1 + per_draft,  # the bonus token included
    )

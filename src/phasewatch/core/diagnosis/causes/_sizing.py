"""What the evidence allows a setting to be: requests that the KV cache holds, what a step of a larger batch or of fewer
prompt tokens takes. None where the evidence does not tell."""

from math import ceil, floor, inf, log2

from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.diagnosis.objectives import family_of
from phasewatch.core.measures.histogram import mean, slowest_edges
from phasewatch.core.measures.phases import mean_of
from phasewatch.core.model import Latency

# A request more in a decode step is a token more to compute, and its context to read: at most about as much again,
# while contexts are short against the model's weights.
_COMPUTED_AND_READ = 2.0


# --- requests that the KV cache holds ------------------------------------------------------------------------------


def request_tokens(view: WindowView) -> float | None:
    """Tokens of a request at its end: until then it holds their blocks."""
    context, output = view.context, view.numbers.tokens.output_mean
    return None if context is None or output is None else context + output / 2


def kv_holds(view: WindowView) -> float | None:
    """Requests that the pool holds at their full length: by its capacity, in whole blocks; more where those that run
    take up less (shared prefixes take room once), and never more than at their present length."""
    tokens, known, most = request_tokens(view), list[float](), inf
    if tokens and view.kv_capacity is not None:
        block = view.pages[-1].get("block_size") or 1.0
        known.append(view.kv_capacity / (ceil(tokens / block) * block))
    busy = [page for page in view.pages if page.get("running", 0.0) >= 1 and page.get("kv_usage", 0.0) > 0]
    usage = sum(page["kv_usage"] for page in busy)
    if usage:
        most = sum(page["running"] for page in busy) / usage
        # Those that run are half through on average; of what length they end is not known before any has.
        known.append(most / (tokens / view.context if tokens and view.context else 2.0))
    return min(most, max(known)) if known else None


# --- what a step of a larger batch takes ---------------------------------------------------------------------------


def pace(case: Case) -> float | None:
    """Of the present batch, without prefill's share where that is known."""
    without = case.view.pace_without_prefill
    return case.view.numbers.itl_seconds.mean if without is None else without


def token_seconds(case: Case) -> float | None:
    """Seconds that one more prompt token adds to a step, at most: prefill of its own past alone on the engine, and of
    the present without the step that each prompt takes anyway. Shared steps make both longer, never shorter."""
    tokens, prefill = case.view.window.histograms.get("computed_prompt_length"), mean_of(case.view.window, "prefill")
    known, step = [case.past.seconds_per_prompt_token], decode_seconds(case)
    length = None if tokens is None else mean(tokens)
    if prefill and length and step is not None and prefill > step:
        known.append((prefill - step) / length)
    return min((one for one in known if one), default=None)


def slope(case: Case) -> float | None:
    """Seconds that one more request adds to a step: from the paces at two running or fewer and at the present batch,
    and no less than computing its token costs; else from that cost. Never more than a request's part of the step."""
    unloaded, now, many, token = case.past.unloaded_pace, pace(case), case.view.now.batch, token_seconds(case)
    part = now / many if now and many else inf
    if unloaded is not None and now is not None and many >= 4:
        return min(part, max(token or 0.0, (now - unloaded) / (many - 2)))
    return None if token is None else min(part, _COMPUTED_AND_READ * token)


def step_seconds(case: Case, size: float) -> float | None:
    """What a step of so many requests takes: as in the engine's own past, else in a straight line from the present."""
    then, now, more, many = case.past.pace_at(size), pace(case), slope(case), case.view.now.batch
    cliff = case.past.cliff
    if cliff is not None and cliff.good_batch < size:
        return max(cliff.seconds, then or 0.0)
    if then is not None:
        return max(then, now or 0.0) if size > many else then
    if now is None or not many:
        return None
    if more is None:
        # At most in proportion: a part of each step, reading the weights, does not grow.
        return now * size / many if size > many else None
    return max(now + more * (size - many), min(now, case.past.unloaded_pace or 0.0))


def keeps_pace(case: Case, size: float) -> bool:
    """Whether no ITL or TPOT objective breaks with a step of so many requests."""
    now, then, limits = pace(case), step_seconds(case, size), case.view.limits
    if now is None or then is None:
        return True
    for name, limit in limits.items():
        family, _, statistic = name.partition("_")
        if family not in ("itl", "tpot") or name == "itl_stall":
            continue
        latency = case.view.numbers.itl_seconds if family == "itl" else case.view.numbers.tpot_seconds
        value, tail = value_of(latency, statistic), statistic in ("p90", "p95", "p99")
        kept = value is not None and value + then - now <= limit.warning
        if not kept and then > limit.warning * (case.view.thresholds.half_objective if tail else 1.0):
            return False
    return True


def value_of(latency: Latency, statistic: str) -> float | None:
    found = getattr(latency, statistic)
    return found if found is None or statistic == "mean" else float(found.value)


def allowed_pace(case: Case) -> float | None:
    """The pace that keeps this symptom's limit, given how far its figure is above the pace."""
    now, value = pace(case), case.symptom.value
    return case.limit * min(1.0, now / value.value) if now and value is not None and case.limit else None


def batch_in_limit(case: Case) -> float | None:
    """The largest batch whose steps keep this symptom's limit; 0: none. Only where the unloaded pace is known."""
    unloaded, allowed, more = case.past.unloaded_pace, allowed_pace(case), slope(case)
    if unloaded is None or allowed is None or not more:
        return None
    return 0.0 if allowed < unloaded else 2 + (allowed - unloaded) / more


def pace_limit(view: WindowView) -> float | None:
    """The tightest limit of ITL or TPOT."""
    return min((one.warning for name, one in view.limits.items() if family_of(name) in ("itl", "tpot")), default=None)


# --- what a step of fewer prompt tokens takes ----------------------------------------------------------------------


def largest_step(view: WindowView) -> tuple[float, float] | None:
    """Edges of the bucket of the step with the most tokens: it had more than the first, and no more than the second."""
    steps = view.window.histograms.get("iteration_tokens")
    return None if steps is None else slowest_edges(steps)


def decode_seconds(case: Case) -> float | None:
    """Of a step that carries no prompt. Where prompts take most of the time, the typical gap is none of such a step."""
    typical, ratio = case.view.numbers.itl_seconds.p50, case.view.numbers.prefill_time_ratio
    known = [case.past.unloaded_pace]
    if typical is not None and (ratio or 0.0) < case.view.thresholds.prefill_bound_ratio:
        known.append(typical.value)
    return min((one for one in known if one is not None), default=None)


def chunk_within(case: Case, limit: float) -> int | None:
    """Prompt tokens, a power of two, that a step can carry within a limit; 0 where not even one fits."""
    token, step = token_seconds(case), decode_seconds(case)
    if token is None or step is None:
        return None
    tokens = (limit - step) / token
    return 0 if tokens < 1 else 2 ** floor(log2(tokens))


def chunk_seconds(case: Case, tokens: float) -> float:
    """What a step with so many prompt tokens takes. Only where `chunk_within` knows."""
    return (decode_seconds(case) or 0.0) + (token_seconds(case) or 0.0) * tokens

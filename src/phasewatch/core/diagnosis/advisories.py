"""What is true without a symptom: worth knowing, never a verdict, never a page. One function and one row a kind."""

from collections.abc import Callable
from dataclasses import dataclass

from phasewatch.core.diagnosis.measures_view import prefix_caching_off
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.numbers import in_flight_change
from phasewatch.core.measures.phases import count_of
from phasewatch.core.measures.window import scrapes
from phasewatch.core.model import Advisory, Numbers, Window
from phasewatch.core.settings import Thresholds


@dataclass(frozen=True, slots=True)
class _Look:
    window: Window
    numbers: Numbers
    thresholds: Thresholds


def advisories(window: Window, numbers: Numbers, thresholds: Thresholds) -> tuple[Advisory, ...]:
    """All that hold in this window, in row order."""
    look = _Look(window, numbers, thresholds)
    return tuple(found for row in _ROWS if (found := row(look)) is not None)


def _prompt_heavy(look: _Look) -> bool:
    """Whether prefill still has more tokens to compute than decode makes."""
    tokens = look.numbers.tokens
    computed, generated = tokens.computed_prompt_per_second, tokens.generation_per_second
    return computed is not None and generated is not None and computed > generated


def _speculation(look: _Look) -> Advisory | None:
    accepted = look.numbers.speculation.mean_accepted_length
    if accepted is None or accepted >= look.thresholds.low_acceptance:
        return None
    ratio = look.numbers.speculation.acceptance_ratio
    return Advisory(
        "speculation_rejected",
        {"mean_accepted_length": accepted, "acceptance_ratio": ratio or 0.0},
        f"A step with speculation yields {number(accepted)} tokens: {percent(ratio)} of the drafts are accepted.",
        "Compare one replica without speculation, or with fewer draft tokens.",
    )


def _caching_off(look: _Look) -> Advisory | None:
    if not prefix_caching_off(look.window) or not _prompt_heavy(look):
        return None
    return Advisory(
        "prefix_caching_off",
        {"prompt_tokens_mean": look.numbers.tokens.prompt_mean or 0.0},
        f"Prefix caching is off while prompts of {number(look.numbers.tokens.prompt_mean)} tokens are the larger part"
        " of the work.",
        "--enable-prefix-caching, if prompts share their heads.",
    )


def _hits_low(look: _Look) -> Advisory | None:
    ratio, share = look.numbers.tokens.prefix_hit_ratio, look.numbers.phases
    prefill, ttft = share.prefill.mean_seconds, look.numbers.ttft_seconds.mean
    if ratio is None or ratio == 0 or not _prompt_heavy(look) or prefill is None or not ttft or prefill < ttft / 2:
        return None
    return Advisory(
        "prefix_hits_low",
        {"prefix_hit_ratio": ratio, "prompt_tokens_mean": look.numbers.tokens.prompt_mean or 0.0},
        f"{percent(ratio)} of the prompt tokens come from the cache; the rest still makes prefill most of a first"
        " token's way.",
        "Keep prompt heads identical (no time stamps or ids near the start) and route by prefix.",
    )


def _kv_filling(look: _Look) -> Advisory | None:
    left, usage = look.numbers.kv_cache.time_to_full_seconds, look.numbers.kv_cache.usage_ratio
    if left is None or usage is None or usage < 0.5 or left > look.thresholds.forecast_seconds:
        return None
    return Advisory(
        "kv_filling",
        {"usage_ratio": usage, "time_to_full_seconds": left},
        f"The KV cache is at {percent(usage)} and full in about {seconds(left)} if it goes on like this.",
        "Cap concurrency before it is full: then requests wait, or running ones are evicted.",
    )


def _kv_tight(look: _Look) -> Advisory | None:
    """Nobody waits yet, but the next prompt would find no room."""
    kv, prompt = look.numbers.kv_cache, look.numbers.tokens.prompt_mean
    queue = look.numbers.queue
    if kv.usage_ratio is None or kv.capacity_tokens is None or prompt is None or not queue.running or queue.waiting:
        return None
    free = (1 - kv.usage_ratio) * kv.capacity_tokens
    if free >= prompt:
        return None
    return Advisory(
        "kv_tight",
        {"usage_ratio": kv.usage_ratio, "free_tokens": free, "prompt_tokens_mean": prompt},
        f"The KV cache is at {percent(kv.usage_ratio)}: a prompt of {number(prompt)} tokens finds room for"
        f" {number(free)}. The next request waits, or running ones are evicted.",
        "Cap concurrency at what runs now, shorten contexts, or give the KV cache more room.",
    )


def _api_server_busy(look: _Look) -> Advisory | None:
    """The front end has engine timestamps for tokens, and some versions start TTFT only once a prompt is rendered:
    what its processor makes late, only clients see."""
    busy = look.window.increases.get("cpu_seconds")
    if busy is None or busy / look.window.seconds < look.thresholds.busy_core:
        return None
    cores = busy / look.window.seconds
    return Advisory(
        "api_server_busy",
        {"cpu_cores": cores, **({} if look.numbers.queue.running is None else {"running": look.numbers.queue.running})},
        f"The API server keeps {number(cores)} CPU cores busy, and much of it runs on one: chat templates, images and"
        " tokenising before TTFT starts, and tokens sent late, are not in this page's TTFT and ITL.",
        "Measure TTFT and ITL at a client; if they are longer there, --api-server-count up or more CPU.",
    )


def _truncated(look: _Look) -> Advisory | None:
    finished, cut = look.window.increases.get("finished", 0.0), look.window.increases.get("finished_length", 0.0)
    output = look.numbers.tokens.output_mean
    # One token an answer is the prefill side of P/D, not a cut answer.
    if finished < look.thresholds.few_finishes or cut / finished <= 0.1 or output is None or output <= 1:
        return None
    return Advisory(
        "answers_truncated",
        {"length_finishes": cut, "finishes": finished},
        f"{percent(cut / finished)} of the answers end at their token limit.",
        "Raise max_tokens if users see cut answers; a benchmark with fixed lengths looks the same.",
    )


def _clients_leave(look: _Look) -> Advisory | None:
    """2xx finishes without an engine finish, after the first token; without HTTP counters, first tokens that no finish
    followed although nobody is left in hand."""
    queue, increases = look.numbers.queue, look.window.increases
    if queue.gave_up_ratio is not None and queue.gave_up_before_first_token_ratio is not None:
        whole = increases.get("http_finishes", 0.0)
        left = (queue.gave_up_ratio - queue.gave_up_before_first_token_ratio) * whole
    else:
        pages = scrapes(look.window)
        if in_flight_change(look.window) is None or pages[-1]["running"] + pages[-1]["waiting"] > 0:
            return None
        whole = count_of(look.window, "ttft")
        left = whole - increases.get("finished", whole)
    if left < look.thresholds.min_over or left / whole <= look.thresholds.share_of_requests:
        return None
    return Advisory(
        "clients_leave",
        {"left_in_mid_answer": left, "requests": whole},
        f"Work is done for requests that never finish: {number(left)} of {number(whole)} were left in mid-answer."
        " Latencies of finished requests are of those who stayed.",
        "A stop button does this; if there is none, look at client and proxy timeouts.",
    )


def _gave_up(look: _Look) -> Advisory | None:
    ratio = look.numbers.queue.gave_up_ratio
    if ratio is None or ratio <= 0.5:
        return None
    return Advisory(
        "survivors",
        {"gave_up_ratio": ratio},
        f"{percent(ratio)} of the clients gave up: latencies of finished requests are those of the few survivors.",
        "Trust waiting, arrivals and TTFT; phases and e2e are of the few who stayed.",
    )


_ROWS: tuple[Callable[[_Look], Advisory | None], ...] = (
    _speculation,
    _caching_off,
    _hits_low,
    _kv_filling,
    _kv_tight,
    _api_server_busy,
    _truncated,
    _gave_up,
    _clients_leave,
)

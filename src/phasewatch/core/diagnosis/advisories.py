"""What is true without a symptom: worth knowing, never a verdict, wakes nobody. One function and one row a kind."""

from collections.abc import Callable

from phasewatch.core.diagnosis.measures_view import WindowView
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.numbers import in_flight_change
from phasewatch.core.measures.phases import count_of
from phasewatch.core.model import Advisory

# vLLM's default --max-num-batched-tokens on large GPUs: prompts that one step can compute are not worth a word.
_STEP_TOKENS = 8192


def advisories(view: WindowView, *, traffic: bool = True) -> tuple[Advisory, ...]:
    """All that hold in this window, in row order. traffic: whether the engine serves; without, its gauges are left."""
    rows = _ROWS if traffic else _WITHOUT_TRAFFIC
    return tuple(found for row in rows if (found := row(view)) is not None)


def _speculation(view: WindowView) -> Advisory | None:
    accepted = view.numbers.speculation.mean_accepted_length
    if accepted is None or accepted >= view.thresholds.low_acceptance:
        return None
    ratio = view.numbers.speculation.acceptance_ratio
    return Advisory(
        "speculation_rejected",
        {"mean_accepted_length": accepted, "acceptance_ratio": ratio or 0.0},
        f"A step with speculative decoding yields {number(accepted)} tokens: {percent(ratio)} of the drafts are"
        " accepted.",
        "Compare one replica without speculation, or with fewer draft tokens.",
    )


def _caching_off(view: WindowView) -> Advisory | None:
    if not view.prefix_caching_off or not view.prompt_heavy:
        return None
    return Advisory(
        "prefix_caching_off",
        {"prompt_tokens_mean": view.numbers.tokens.prompt_mean or 0.0},
        f"Prefix caching is off while prompts of {number(view.numbers.tokens.prompt_mean)} tokens are the larger part"
        " of the work.",
        "--enable-prefix-caching, if prompts share prefixes.",
    )


def _hits_low(view: WindowView) -> Advisory | None:
    ratio, share = view.numbers.tokens.prefix_hit_ratio, view.numbers.phases
    prefill, ttft = share.prefill.mean_seconds, view.numbers.ttft_seconds.mean
    if ratio is None or ratio == 0 or not view.prompt_heavy or prefill is None or not ttft or prefill < ttft / 2:
        return None
    return Advisory(
        "prefix_hits_low",
        {"prefix_hit_ratio": ratio, "prompt_tokens_mean": view.numbers.tokens.prompt_mean or 0.0},
        f"{percent(ratio)} of the prompt tokens come from the cache; prefill of the rest is still most of TTFT.",
        "Keep prompt prefixes identical (no timestamps or ids near the start) and route by prefix.",
    )


def _no_hits(view: WindowView) -> Advisory | None:
    """Zero is right where nothing that prompts share fills a block, and wrong where hits are not counted: the counters
    look the same."""
    increases = view.window.increases
    queries, external = increases.get("prefix_queries", 0.0), increases.get("external_prefix_hits", 0.0)
    prompts = max(count_of(view.window, "ttft"), view.finishes)
    if increases.get("prefix_hits") != 0 or external or view.prefix_caching_off:
        return None
    if queries < _STEP_TOKENS or prompts < view.thresholds.few_finishes:
        return None
    size = view.pages[-1].get("block_size")
    block = "cache block" if size is None else f"cache block of {number(size)} tokens"
    return Advisory(
        "prefix_hits_none",
        {"prefix_queries": queries, "prefix_hits": 0.0, **({} if size is None else {"block_size": size})},
        f"The prefix cache is on and shows no hit for {number(queries)} prompt tokens. Either nothing that prompts"
        f" share is as long as a {block}, and 0 is right, or this build does not count its hits.",
        "Send one long prompt twice and compare TTFT: if the repeat is much faster, caching works and only the hit"
        f" counter does not; if not, prompts need a shared prefix longer than a {block}, or a smaller --block-size.",
    )


def _kv_filling(view: WindowView) -> Advisory | None:
    left, usage = view.numbers.kv_cache.time_to_full_seconds, view.numbers.kv_cache.usage_ratio
    if left is None or usage is None or usage < 0.5 or left > view.thresholds.forecast_seconds:
        return None
    return Advisory(
        "kv_filling",
        {"usage_ratio": usage, "time_to_full_seconds": left},
        f"The KV cache is at {percent(usage)} and full in about {seconds(left)} at this rate.",
        "Cap concurrency before it is full: then requests wait, or running ones are preempted.",
    )


def _kv_tight(view: WindowView) -> Advisory | None:
    """Nobody waits yet, but the next prompt would find no room."""
    usage, prompt, queue = view.numbers.kv_cache.usage_ratio, view.numbers.tokens.prompt_mean, view.numbers.queue
    free = view.numbers.kv_cache.free_tokens
    if usage is None or free is None or prompt is None or not queue.running or queue.waiting or not view.kv_short_now:
        return None
    return Advisory(
        "kv_tight",
        {"usage_ratio": usage, "free_tokens": free, "prompt_tokens_mean": prompt},
        f"The KV cache is at {percent(usage)}, with room for {number(free)} tokens; a mean prompt has {number(prompt)}."
        " The next request waits, or running ones are preempted.",
        "Cap concurrency at what runs now, shorten contexts, or give the KV cache more room.",
    )


def _kv_small(view: WindowView) -> Advisory | None:
    """The capacity in contexts: of the longest allowed request where the page has it, else of those present."""
    capacity, context = view.kv_capacity, view.context
    if capacity is None:
        return None
    longest = view.pages[-1].get("kv_concurrency")
    if longest is not None and longest < 1:
        return Advisory(
            "kv_small",
            {"capacity_tokens": capacity, "longest_request_tokens": capacity / longest},
            f"The KV cache holds {number(capacity)} tokens, the longest allowed request has"
            f" {number(capacity / longest)}: such a request can never run.",
            "--max-model-len down to what is needed, or more room: --gpu-memory-utilization up, --kv-cache-dtype fp8.",
        )
    present = max((page.get("running", 0.0) + page.get("waiting", 0.0) for page in view.pages), default=0.0)
    if not context or present < view.thresholds.min_over or capacity / context > present:
        return None
    return Advisory(
        "kv_small",
        {"capacity_tokens": capacity, "context_tokens_mean": context, "requests_present_max": present},
        f"The KV cache holds about {number(capacity // context)} requests of {number(context)} tokens (prompt and half"
        f" the answer); up to {number(present)} were present at once.",
        "Expect a queue or preemptions at this load; more room or fewer tokens a request raise what fits.",
    )


def _kv_held_idle(view: WindowView) -> Advisory | None:
    """Blocks that stay taken though nobody ran or waited all the time."""
    usages = [page.get("kv_usage", 0.0) for page in view.pages]
    idle = all(page.get("running") == 0 and not page.get("waiting") for page in view.pages)
    if not idle or min(usages) < view.thresholds.held_share:
        return None
    return Advisory(
        "kv_held",
        {"kv_usage_min_ratio": min(usages), "idle_seconds": view.window.seconds},
        f"{percent(min(usages))} of the KV cache is held although no request has run or waited for"
        f" {seconds(view.window.seconds)}: blocks that requests which have ended left behind.",
        "Act before traffic returns: on a prefill engine of P/D find out why decode engines do not collect; else"
        " restart the engine, and report it to vLLM.",
    )


def _adapters_waiting(view: WindowView) -> Advisory | None:
    waiting, slots = view.window.gauges.get("waiting_adapters"), view.pages[-1].get("adapter_slots")
    held = [page for page in view.pages if page.get("waiting_adapters", 0.0) > 0 and page.get("waiting", 0.0) > 0]
    if waiting is None or len(held) / len(view.pages) <= view.thresholds.most_scrapes:
        return None
    room = "" if slots is None else f" (max_loras {number(slots)})"
    return Advisory(
        "adapters_waiting",
        {"waiting_adapters_mean": waiting.mean, **({} if slots is None else {"max_loras": slots})},
        f"Requests wait for {number(waiting.max)} LoRA adapters that have no slot{room}.",
        "--max-loras up (and --max-cpu-loras), or route each adapter to replicas of its own.",
    )


def _api_server_busy(view: WindowView) -> Advisory | None:
    """The front end has engine timestamps for tokens, and some versions start TTFT only once a prompt is rendered:
    what its processor makes late, only clients see."""
    cores = view.cpu_cores
    if cores is None or cores < view.thresholds.busy_core:
        return None
    return Advisory(
        "api_server_busy",
        {"cpu_cores": cores, **({} if view.numbers.queue.running is None else {"running": view.numbers.queue.running})},
        f"The API server keeps {number(cores)} CPU cores busy, and much of it runs on one: chat templates, images and"
        " tokenising before TTFT starts, and tokens sent late, are not in vLLM's TTFT and ITL.",
        "Measure TTFT and ITL at a client; if they are longer there, --api-server-count up or more CPU.",
    )


def _still_running(view: WindowView) -> Advisory | None:
    """Of a model without an objective of e2e: with one it is a symptom."""
    ran, limit = view.numbers.queue.oldest_running_seconds, view.thresholds.long_running_seconds
    if ran is None or ran < limit or any(name.startswith("e2e_") for name in view.limits):
        return None
    rate = view.numbers.tokens.generation_per_second
    flow = "no token was generated" if not rate else f"{number(rate)} tokens/s flow"
    return Advisory(
        "still_running",
        {"oldest_running_seconds": ran, **({} if rate is None else {"generation_tokens_per_second": rate})},
        f"A request has run for at least {seconds(ran)} and has not finished; in this window {flow}.",
        "A long answer, or repetition without end: look for it in the API server's log; max_tokens ends such."
        " An objective such as e2e_p99 makes it a symptom.",
    )


def _truncated(view: WindowView) -> Advisory | None:
    finished, cut = view.window.increases.get("finished", 0.0), view.window.increases.get("finished_length", 0.0)
    output = view.numbers.tokens.output_mean
    # One token an answer is the prefill side of P/D, not a cut answer.
    if finished < view.thresholds.few_finishes or cut / finished <= 0.1 or output is None or output <= 1:
        return None
    return Advisory(
        "answers_truncated",
        {"length_finishes": cut, "finishes": finished},
        f"{percent(cut / finished)} of the answers end at their token limit.",
        "Raise max_tokens if users see truncated answers; a benchmark with fixed lengths looks the same.",
    )


def _clients_leave(view: WindowView) -> Advisory | None:
    """2xx finishes without an engine finish, after the first token; without HTTP counters, first tokens that no finish
    followed although nobody is left in hand."""
    queue, increases = view.numbers.queue, view.window.increases
    if queue.gave_up_ratio is not None and queue.gave_up_before_first_token_ratio is not None:
        whole = increases.get("http_finishes", 0.0)
        left = (queue.gave_up_ratio - queue.gave_up_before_first_token_ratio) * whole
    else:
        pages = view.pages
        if in_flight_change(view.window) is None or pages[-1]["running"] + pages[-1]["waiting"] > 0:
            return None
        whole = count_of(view.window, "ttft")
        left = whole - increases.get("finished", whole)
    if left < view.thresholds.min_over or left / whole <= view.thresholds.share_of_requests:
        return None
    return Advisory(
        "clients_leave",
        {"left_in_mid_answer": left, "requests": whole},
        f"Work is done for requests that never finish: {number(left)} of {number(whole)} were left before"
        " their last token. Latencies of finished requests include only those that stayed.",
        "A stop button does this; if there is none, look at client and proxy timeouts.",
    )


def _gave_up(view: WindowView) -> Advisory | None:
    ratio = view.numbers.queue.gave_up_ratio
    if ratio is None or ratio <= 0.5:
        return None
    return Advisory(
        "survivors",
        {"gave_up_ratio": ratio},
        f"{percent(ratio)} of the clients gave up: latencies of finished requests include only the few that stayed.",
        "Trust waiting, arrivals and TTFT; phases and e2e include only the few that stayed.",
    )


_ROWS: tuple[Callable[[WindowView], Advisory | None], ...] = (
    _speculation,
    _caching_off,
    _hits_low,
    _no_hits,
    _kv_filling,
    _kv_tight,
    _kv_small,
    _kv_held_idle,
    _adapters_waiting,
    _api_server_busy,
    _still_running,
    _truncated,
    _gave_up,
    _clients_leave,
)
_WITHOUT_TRAFFIC = (_kv_held_idle,)

"""Remedies that several causes share, and the conditions and values of some: what was measured must not contradict an
advice."""

import re
from dataclasses import replace
from math import ceil, inf, sqrt

from phasewatch.core.diagnosis.causes._row import AS_WRITTEN, Advice, Proposal, always
from phasewatch.core.diagnosis.causes._sizing import (
    allowed_pace,
    batch_in_limit,
    chunk_seconds,
    chunk_within,
    decode_seconds,
    keeps_pace,
    kv_holds,
    largest_step,
    pace,
    pace_limit,
    request_tokens,
    step_seconds,
    token_seconds,
)
from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.diagnosis.objectives import family_of, wait_limit
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.numbers import waiting_for_capacity
from phasewatch.core.model import Remedy

# Of a prompt's tokens, from the prefix cache: above it prefixes are kept and routed well already.
_HITS_HIGH = 0.8
# vLLM does not start with fewer tokens a step than requests it may run: --max-num-seqs is 256 by default.
_LEAST_BUDGET = 256
_LEAST_THRESHOLD = 16  # a block: less is a step a few tokens
_MOST_MEMORY = 0.95  # of a GPU: the rest is the driver's and the allocator's
_MOST_DRAFTS = 5


# --- conditions ------------------------------------------------------------------------------------------------------


def prefixes_can_gain(view: WindowView) -> bool:
    """Whether the prefix cache is on and misses enough for steadier prefixes to matter."""
    hits = view.numbers.tokens.prefix_hit_ratio
    return not view.prefix_caching_off and (hits is None or hits < _HITS_HIGH)


def caching_off(view: WindowView) -> bool:
    return view.prefix_caching_off


def room_for_more(view: WindowView) -> bool:
    """Whether the KV cache had room for one more mean prompt all the time that requests waited."""
    return not any(view.kv_short(page) for page in view.queue_pages)


def speculating(view: WindowView) -> bool:
    return view.window.increases.get("spec_drafts", 0.0) > 0


def preempted(view: WindowView) -> bool:
    return view.preemptions > 0


# --- demand ----------------------------------------------------------------------------------------------------------


def demand(view: WindowView) -> tuple[float, float] | None:
    """Requests that arrive and that are served a second, where more arrive than by chance (two deviations of random
    arrivals)."""
    arrive, served = view.numbers.queue.arrivals_per_second, view.numbers.queue.admissions_per_second
    if not arrive or not served or arrive - served <= 2 * sqrt(arrive / view.window.seconds):
        return None
    return arrive, served


def drains(view: WindowView) -> bool:
    """Whether the queue shrinks so fast that it is gone before any change takes effect, and did not come before."""
    name, steps = waiting_for_capacity(view.window), view.window.steps
    before = next(
        (one for one in reversed(steps) if steps[-1].end - one.start >= view.thresholds.agree_seconds), steps[0]
    )
    was, now = before.before.get(name, 0.0), view.waiting_now
    return (
        was > now
        and not view.queue_returns
        and now * (steps[-1].end - before.start) <= (was - now) * view.window.seconds
    )


def _shed(case: Case) -> Proposal | None:
    view = case.view
    if drains(view):
        return None
    both = demand(view)
    if both is None:
        return AS_WRITTEN
    arrive, served = both
    return Proposal(
        f"shed load: admit at most {number(served)} requests/s here ({number(arrive)} arrive), by the rate limit or by"
        " routing part of the traffic elsewhere"
    )


def replicas(wanted: float, why: str) -> Proposal:
    """wanted: engines like this one that the load takes, together."""
    more = max(1, ceil(wanted) - 1)
    return Proposal("add a replica" if more == 1 else f"add {number(more)} replicas", why)


def _replicas_by_demand(case: Case) -> Proposal | None:
    both = demand(case.view)
    if drains(case.view):
        return None
    if both is None:
        return AS_WRITTEN
    arrive, served = both
    return replicas(arrive / served, f"{number(arrive)} requests/s arrive and one engine serves {number(served)}")


def _replicas_by_batch(case: Case) -> Proposal | None:
    most, now = batch_in_limit(case), case.view.now.batch
    if most is None or most >= now:
        return AS_WRITTEN
    if most < 1:
        return None  # not even one alone gets its tokens in time
    return replicas(
        now / most, f"about {number(int(most))} requests at a time keep the limit of {seconds(case.limit)}, and"
        f" {number(round(now))} run"
    )  # fmt: skip


def _replicas_by_room(case: Case) -> Proposal | None:
    view, holds = case.view, kv_holds(case.view)
    wanted = view.running_max + view.waiting_now
    if demand(view) is not None:
        return _replicas_by_demand(case)
    if not holds or wanted <= holds:
        return AS_WRITTEN
    return replicas(
        wanted / holds, f"the KV cache holds about {number(int(holds))} such requests, and {number(wanted)} are here"
    )


def adds_replicas(remedy: Remedy) -> bool:
    return re.match(r"add (a|[\d,]+) replicas?\b", remedy.change) is not None


# --- --max-num-seqs --------------------------------------------------------------------------------------------------


def _more_seqs(case: Case) -> Proposal | None:
    """Doubled as often as it takes for those who wait, while the KV cache holds them and no ITL objective breaks."""
    view = case.view
    most = round(max((page.get("running", 0.0) for page in view.queue_pages), default=0.0))
    usage = view.window.gauges["kv_usage"].max
    if most < 1 or view.preemptions or usage >= view.thresholds.kv_full_ratio:
        return None
    both, holds = demand(view), kv_holds(view)
    name = waiting_for_capacity(view.window)
    want = most + max(page[name] for page in view.queue_pages)
    if both is not None:  # as many as come, and those who wait within another window
        want = min(want, most * (both[0] + view.waiting_now / view.window.seconds) / both[1])
    value = most
    while value < want:
        more = 2 * value if want < 16 else min(2 * value, ceil(want / 8) * 8)
        if holds is not None:
            more = min(more, int(holds) if holds < 16 else int(holds) // 8 * 8)
        if more <= value or not keeps_pace(case, more):
            break
        value = more
    if value < view.thresholds.alike_ratio * most:
        return None
    then, now, limit = step_seconds(case, value), pace(case), pace_limit(view)
    room = f"the KV cache is {percent(usage)} used"
    if holds is not None:
        room += f" and holds about {number(int(holds))} such requests"
    takes, grows = "", "TTFT improves, ITL grows with the batch (its pace there is not known: watch it)"
    if then is not None and now is not None:
        allowed = "" if limit is None else f" (limit {seconds(limit)})"
        takes = f"; a step of {number(value)} takes up to about {seconds(then)}{allowed}"
        grows = f"TTFT improves, a token takes up to about {seconds(then)} instead of {seconds(now)}"
        if then < (1 + view.thresholds.worth_a_restart) * now:
            grows = f"TTFT improves, ITL hardly changes ({seconds(now)} a token now)"
    return Proposal(f"--max-num-seqs {most} -> {value}", room + takes, grows, "cures" if value >= want else "eases")


def _capped(case: Case) -> tuple[int, str] | None:
    """The requests at a time that keep this symptom's limit, and what becomes of the others; 0 where none do."""
    most, now, took = batch_in_limit(case), case.view.now.batch, pace(case)
    if most is None or took is None or not now:
        return None
    size = int(most)
    if size < 1 or size >= now:
        return 0, ""
    then = step_seconds(case, size)
    if not then:
        return None
    share = min(1.0, size / then / (now / took))
    return size, (
        f"ITL falls to about {seconds(then)} a token; the engine then serves {percent(share)} of what it serves now,"
        " and the rest waits: TTFT grows"
    )


def _at_most_in_proportion(case: Case) -> int | None:
    """Without an unloaded pace: no batch above this keeps the limit, since a step falls at most in proportion."""
    allowed, now, many = allowed_pace(case), pace(case), case.view.now.batch
    return None if allowed is None or not now or allowed >= now else int(many * allowed / now)


def _fewer_seqs(case: Case) -> Proposal | None:
    capped, run = _capped(case), f"{number(round(case.view.now.batch))} requests share a step now"
    if capped is None:
        most = _at_most_in_proportion(case)
        return AS_WRITTEN if not most else Proposal(f"--max-num-seqs down below {most}", run)
    size, then = capped
    return Proposal(f"--max-num-seqs down to {size}", run, then) if size else None


def _cap_at_gateway(case: Case) -> Proposal | None:
    capped = _capped(case)
    if capped is None:
        most = _at_most_in_proportion(case)
        return AS_WRITTEN if not most else Proposal(f"cap concurrency at the gateway: below {most} requests at a time")
    size, then = capped
    return Proposal(f"cap concurrency at the gateway: {size} requests at a time", "", then) if size else None


def _seqs_that_fit(case: Case) -> Proposal | None:
    """As many as the pool holds at their full length: then nobody is evicted."""
    holds, most = kv_holds(case.view), case.view.running_max
    if holds is None:
        return AS_WRITTEN
    size = int(min(holds, most - 1))
    if size < 1:
        return None
    return Proposal(
        f"--max-num-seqs down to {size}",
        f"{number(most)} run at a time, and the KV cache holds about {number(int(holds))} of them at their full length",
    )


# --- tokens a step ---------------------------------------------------------------------------------------------------


def _step_limit(case: Case) -> float | None:
    """What a step may take: the tightest limit that streams miss; else half the TTFT limit, since who arrives waits
    for the running step, and then for its own."""
    paces = [one.limit_seconds for one in case.symptoms if family_of(one.objective) in ("itl", "tpot")]
    known = [one for one in paces if one]
    if known:
        return min(known)
    limit = wait_limit(case.view.limits)
    return None if limit is None else limit.warning / 2


def _smaller_chunk(case: Case, least: int) -> Proposal | None:
    """Its change is the value alone. None: no chunk helps; AS_WRITTEN: that is not known. Where not even the least one
    keeps the limit, that one still shortens steps."""
    most, limit = largest_step(case.view), _step_limit(case)
    if most is not None and most[1] <= least:
        return None  # steps are as small already
    value = None if limit is None else chunk_within(case, limit)
    if value is None or limit is None or most is None:
        return AS_WRITTEN
    cures = value >= least
    value = max(value, least)
    if value > most[0]:
        return None
    full = case.view.longest_prefill_at_least or 0.0
    largest = min(most[1], full / (token_seconds(case) or inf)) if full and most[1] == inf else most[1]
    each = chunk_seconds(case, value) / value
    longer = each / (chunk_seconds(case, largest) / largest) if largest < inf else 1.0
    return Proposal(
        str(value),
        f"a step carries more than {number(most[0])} tokens now; one with {number(value)} prompt tokens takes about"
        f" {seconds(chunk_seconds(case, value))} ({'' if cures else 'still over the '}limit {seconds(limit)})",
        f"ITL improves, long prompts take about {number(longer)} times as long to compute",
        "cures" if cures else "eases",
    )


def _smaller_budget(case: Case) -> Proposal | None:
    found = _smaller_chunk(case, max(_LEAST_BUDGET, ceil(case.view.running_max)))
    if found is None or found is AS_WRITTEN:
        return found
    return replace(found, change=f"--max-num-batched-tokens down to {found.change} (not below --max-num-seqs)")


def _prompt_threshold(case: Case) -> Proposal | None:
    found = _smaller_chunk(case, _LEAST_THRESHOLD)
    if found is None or found is AS_WRITTEN:
        return found
    return replace(found, change=f"--long-prefill-token-threshold {found.change}")


def _larger_budget(case: Case) -> Proposal | None:
    """Worth it only where a prompt takes several steps and their fixed part is a good share of their time."""
    view, most, step, token = case.view, largest_step(case.view), decode_seconds(case), token_seconds(case)
    prompt, limit = view.numbers.tokens.computed_prompt_mean, pace_limit(view)
    if most is None or step is None or token is None or prompt is None or not most[1] < prompt:
        return None
    value, streams = int(most[1]), view.running_max > 1
    while value < prompt and (not streams or limit is None or chunk_seconds(case, 2 * value) <= limit):
        value *= 2
    gained = 1 - (step / value + token) / (step / most[1] + token)
    if value <= most[1] or gained < view.thresholds.worth_a_restart:
        return None
    return Proposal(
        f"--max-num-batched-tokens up to {value}",
        f"a prompt of {number(prompt)} tokens is computed at most {number(most[1])} a step; with {number(value)} it"
        f" takes {percent(gained)} less time",
        f"TTFT improves, a step takes up to {seconds(chunk_seconds(case, value))}",
    )


def _shorter_prompts(case: Case) -> Proposal | None:
    """As many tokens as the TTFT limit leaves time for; at a queue, as are computed now among those who arrive."""
    view, token, limit = case.view, token_seconds(case), wait_limit(case.view.limits)
    now, both = view.numbers.tokens.computed_prompt_mean, demand(case.view)
    if now is None:
        return AS_WRITTEN
    if view.queued:
        if both is None:
            return AS_WRITTEN
        arrive, served = both
        most, why = now * served / arrive, f"a second; {number(arrive)} requests/s arrive"
        tokens = now * served
    elif token is None or limit is None or limit.warning / token >= now:
        return AS_WRITTEN
    else:
        most = tokens = limit.warning / token
        why = f"within {seconds(limit.warning)}, the TTFT limit"
    return Proposal(
        f"send shorter prompts: at most about {number(round(most))} computed tokens a request"
        f" ({number(round(now))} now)",
        f"{number(round(tokens))} prompt tokens are computed {why}",
        effect="cures",
    )


# --- room in the KV cache --------------------------------------------------------------------------------------------


def _holds_now(case: Case) -> str:
    holds = kv_holds(case.view)
    if holds is None:
        return ""
    tokens = request_tokens(case.view)
    of = "" if tokens is None else f" of {number(round(tokens))} tokens"
    return f"about {number(int(holds))} requests{of}"


def _set(view: WindowView, label: str) -> str | None:
    """What the page says of a part of the configuration that is off by default."""
    told = view.configuration.get(label, "None")
    return None if told in ("None", "") else told


def _fp8_cache(case: Case) -> Proposal | None:
    """Nothing where it is so already, or where the number of blocks is set: then they only get smaller."""
    if case.view.configuration.get("cache_dtype", "").startswith("fp8") or _set(case.view, "num_gpu_blocks_override"):
        return None
    holds = kv_holds(case.view)
    if holds is None:
        return AS_WRITTEN
    return Proposal(why=f"the same memory holds about twice the tokens: {number(int(2 * holds))} requests instead of"
        f" {number(int(holds))}")  # fmt: skip


def _without_override(case: Case) -> Proposal | None:
    blocks, holds = _set(case.view, "num_gpu_blocks_override"), _holds_now(case)
    if blocks is None:
        return None
    return Proposal(
        f"remove --num-gpu-blocks-override (now {blocks} blocks)",
        f"it sets the size of the KV cache{f': {holds}' if holds else ''}, however much memory there is",
    )


def _more_bytes(case: Case) -> Proposal | None:
    """Where the pool's size is set in bytes, and nothing else sets it."""
    told, holds = _set(case.view, "kv_cache_memory_bytes"), _holds_now(case)
    if told is None or not told.isdigit() or _set(case.view, "num_gpu_blocks_override"):
        return None
    return Proposal(
        f"--kv-cache-memory-bytes {told} -> {2 * int(told)}, as far as memory allows (CPU: VLLM_CPU_KVCACHE_SPACE)",
        f"it sets the size of the KV cache{f': {holds}' if holds else ''}",
    )


def _more_memory(case: Case) -> Proposal | None:
    """Nothing where the pool's size is set by another flag, or the share is as high as it can be."""
    if _set(case.view, "kv_cache_memory_bytes") or _set(case.view, "num_gpu_blocks_override"):
        return None
    try:
        share = float(case.view.configuration.get("gpu_memory_utilization", ""))
    except ValueError:
        return AS_WRITTEN
    if not 0 < share < _MOST_MEMORY:
        return None
    holds = _holds_now(case)
    held = f"more memory for the KV cache{f', which holds {holds} now' if holds else ''}"
    return Proposal(f"--gpu-memory-utilization {share:g} -> {_MOST_MEMORY:g}", held)


# --- decode bound by memory ------------------------------------------------------------------------------------------


def _speculate(case: Case) -> Proposal | None:
    """A step that waits for the weights has room to check drafts: as many tokens as compute in that time, of which each
    request takes one and its drafts."""
    view, step, token, many = case.view, decode_seconds(case), token_seconds(case), case.view.now.batch
    if speculating(view) or not many or step is None:
        return None
    room = view.thresholds.prefill_tokens_a_step if token is None else step / token
    drafts = min(_MOST_DRAFTS, int(room / many) - 1)
    if drafts < 1:
        return None
    return Proposal(
        f"--speculative-config with num_speculative_tokens {drafts} (n-gram, EAGLE or a draft model)",
        f"decode waits for memory: in a step's {seconds(step)} about {number(int(room))} tokens can be computed, and"
        f" {number(round(many, 1))} requests run",
    )


def _quantise_for_batch(case: Case) -> Proposal | None:
    """The weights' part of a step is what it takes unloaded; the batch's part stays."""
    unloaded, now = case.past.unloaded_pace, pace(case)
    if unloaded is None or not now:
        return AS_WRITTEN
    then = now - unloaded / 2
    if then > (1 - 2 * case.view.thresholds.worth_a_restart) * now:
        return None
    return Proposal(why=f"of {seconds(now)} a step, {seconds(unloaded)} do not depend on the batch: 8 bits halve at"
        f" most that, to {seconds(then)}")  # fmt: skip


def _quantise(case: Case) -> Proposal | None:
    unloaded = case.past.unloaded_pace
    if unloaded is None:
        return AS_WRITTEN
    met = "" if unloaded / 2 <= case.limit else f", still over the limit of {seconds(case.limit)}: 4 bit, or both"
    return Proposal(
        why=f"a step reads half the bytes: {seconds(unloaded)} become {seconds(unloaded / 2)} at best{met}",
        effect="eases" if met else "cures",
    )


# fmt: off
SHED = Advice("shed load: lower the rate limit, or route part of the traffic elsewhere",
    "stops the queue growing while you apply the fix below", "now", "TTFT and ITL both improve",
    effect="cures", where="the queue does not drain by itself", proposes=_shed)
REPLICA = Advice("add a replica", "capacity is what is missing", "capacity", "TTFT and ITL both improve",
    effect="cures", where="no sibling stands idle", proposes=_replicas_by_demand)
REPLICA_FOR_BATCH = replace(REPLICA, proposes=_replicas_by_batch)
REPLICA_FOR_ROOM = replace(REPLICA, proposes=_replicas_by_room)
SHORTER_PROMPTS = Advice("send shorter prompts", "prefill time grows with computed tokens", "now",
    "ITL improves as well", effect="eases", proposes=_shorter_prompts)
SAME_PREFIXES = Advice(
    "keep prompt prefixes identical (system prompt first, nothing that changes before it) and route by prefix",
    "cached prefixes are not computed again", "now", "ITL does not change",
    where="prefix caching is on and under 80 % of the prompt tokens hit", fits=prefixes_can_gain)
# Beside caching that is off: what makes it pay once it is on.
STABLE_PREFIXES = replace(SAME_PREFIXES, fits=always, where="")
ENABLE_CACHING = Advice("--enable-prefix-caching (on by default; it was turned off)",
    "prefixes that prompts share are computed once; it helps only if they do share them", "restart",
    "ITL does not change", effect="cures", where="it is off", fits=caching_off)
MORE_BATCHED_TOKENS = Advice("--max-num-batched-tokens up", "prompts need fewer steps", "restart",
    "TTFT improves, running streams stall longer",
    where="a prompt takes several steps, over 10 % of whose time is fixed, and longer ones keep the ITL limit",
    proposes=_larger_budget)
SMALLER_BUDGET = Advice("--max-num-batched-tokens down (2048, then 1024)",
    "a smaller prefill chunk holds up running streams, and who arrives, for less", "restart",
    "ITL improves, TTFT of long prompts stays or grows a little", effect="eases",
    where="steps carry more tokens than the limit leaves time for, and more than 256", proposes=_smaller_budget)
PROMPT_THRESHOLD = Advice("--long-prefill-token-threshold (e.g. a quarter of the budget)",
    "one long prompt may not take the whole step: others are computed beside it", "restart",
    "ITL improves, TTFT of long prompts grows", effect="eases",
    where="steps carry more tokens than the limit leaves time for", proposes=_prompt_threshold)
FP8_CACHE = Advice("--kv-cache-dtype fp8", "the same memory holds about twice the tokens", "restart",
    "decode reads less; check answer quality", effect="eases",
    where="the cache is not fp8 already and its number of blocks is not set",
    proposes=_fp8_cache)
WITHOUT_GRAMMAR = Advice(
    "ask whether requests use structured output (a JSON schema, a grammar); compare a few without it",
    "its masks are computed for every token on the host's CPU, and no metric shows that", "now", "TTFT does not change")
MORE_SEQS = Advice("--max-num-seqs up", "more requests share a step; the KV cache has room for them", "restart",
    "TTFT improves, ITL grows with the batch", effect="eases",
    where="the KV cache has room for more requests and their step keeps the ITL limit",
    fits=room_for_more, proposes=_more_seqs)
FEWER_SEQS = Advice("--max-num-seqs down", "fewer requests share a step and the KV cache", "restart",
    "ITL improves, the queue and TTFT grow", effect="eases", where="a smaller batch keeps the ITL limit",
    proposes=_fewer_seqs)
CAP_CONCURRENCY = Advice("cap concurrency at the gateway", "fewer requests share a step", "now",
    "ITL improves, the rest waits: TTFT grows", effect="eases", where="a smaller batch keeps the ITL limit",
    proposes=_cap_at_gateway)
SPECULATE = Advice("--speculative-config (n-gram, EAGLE or a draft model)",
    "decode waits for memory: checking some drafts takes a step hardly longer", "restart",
    "TTFT hardly changes; the gain depends on how many drafts are accepted", effect="eases",
    where="drafts are off and the batch is so small that their tokens compute while a step reads the weights",
    proposes=_speculate)
QUANTISE = Advice("quantise weights to 8 bit", "a step reads half the bytes: up to twice the speed", "restart",
    "TTFT gains less; check answer quality", effect="eases", proposes=_quantise)
QUANTISE_FOR_BATCH = Advice("quantise weights, or a GPU with more memory bandwidth",
    "decode is bound by what a step reads", "capacity", "TTFT gains less",
    where="most of a step does not depend on the batch", proposes=_quantise_for_batch)

# An evicted request and one that waits for blocks want the same: room.
KV_ROOM = (
    SHED,
    REPLICA_FOR_ROOM,
    Advice("--gpu-memory-utilization up (default 0.92 since 0.20, 0.90 before)", "more memory for the KV cache",
        "restart", "TTFT and ITL both improve, until memory runs out at start", effect="eases",
        where="it is below 0.95 and no other flag sets the KV cache's size", proposes=_more_memory),
    Advice("--kv-cache-memory-bytes up, as far as memory allows", "it sets the size of the KV cache", "restart",
        "TTFT and ITL both improve", effect="eases", where="the page says that it is set", proposes=_more_bytes),
    Advice("remove --num-gpu-blocks-override", "it sets the size of the KV cache, however much memory there is",
        "restart", "TTFT and ITL both improve", effect="cures", where="the page says that it is set",
        proposes=_without_override),
    FP8_CACHE,
    Advice("--max-num-seqs down", "fewer requests share the KV cache: nobody is evicted and computed again", "restart",
        "ITL improves, the queue and TTFT grow", effect="eases", where="running requests were evicted", fits=preempted,
        proposes=_seqs_that_fit),
    Advice("--tensor-parallel-size up", "weights take less memory per GPU, the KV cache grows", "capacity",
        "TTFT and ITL both improve", effect="eases"),
)
# fmt: on

"""Kinds of incidents in which the first token comes late: queues, prefill, front end, cold start, KV on its way."""

import math
from dataclasses import replace
from random import Random

from tools.simulator.config import Faults, Flow, FrontEnd, Length, Transfer
from tools.simulator.incident import LASTS, Incident, Judge, draw_onset, more
from tools.simulator.sizes import Base, draw, edge_above, pool_of, with_flags, with_machine
from tools.simulator.speed import stop_and_go


def _overload(random: Random, slots: int, base: Base) -> tuple[float, float]:
    """Arrivals a second on top of the usual, and when the queue alone makes people wait twice what was asked."""
    capacity = base.rate(slots)
    rate = capacity * random.uniform(1.5, 2.3)
    wait = 2 * base.objectives()["ttft_p99"]
    return rate, wait / (1 - capacity / rate) + slots / capacity


def queue_batch_limit(random: Random) -> Incident:
    base = draw(random)
    slots = max(random.randint(4, 24), math.ceil(3 * base.busy))
    base = replace(base, prompt=min(base.prompt, 0.15 / base.rate(slots) / base.machine.prefill_token_seconds))
    base = with_flags(base, max_num_seqs=slots, kv_blocks=pool_of(base, 8 * slots * (base.prompt + base.output)))
    onset = draw_onset(random)
    rate, settle = _overload(random, slots, base)
    flows = (base.light(), more(base, onset, rate))
    return Incident(
        base, flows, "ttft_p99", f"max_num_seqs={slots}, arrivals above capacity", ("queue_batch_limit",), onset, settle
    )


def client_aborts(random: Random) -> Incident:
    incident = queue_batch_limit(random)
    limit = incident.base.objectives()["ttft_p99"]
    patience = limit * random.uniform(2.5, 4)
    flows = tuple(
        replace(flow, timeout=patience + incident.base.output * incident.base.pace(24)) for flow in incident.flows
    )
    return replace(incident, flows=flows, story=incident.story + "; clients give up")


def queue_kv_cache(random: Random) -> Incident:
    base = draw(random)
    held = max(random.randint(4, 14), math.ceil(3 * base.busy))
    base = replace(base, output=max(base.output, 80.0))
    base = replace(base, prompt=min(base.prompt, 0.15 / base.rate(held) / base.machine.prefill_token_seconds))
    size = base.flags.block_size
    sequence = base.prompt + base.output * 0.7 + size / 2
    base = with_flags(
        base,
        max_num_seqs=256,
        kv_blocks=max(pool_of(base, held * sequence), 5 + round(4 * (base.prompt + base.output) / size)),
    )
    onset = draw_onset(random)
    rate, settle = _overload(random, held, base)
    flows = (base.light(), more(base, onset, rate))
    return Incident(base, flows, "ttft_p99", f"a pool for about {held} sequences", ("queue_kv_cache",), onset, settle)


def queue_prefill_backlog(random: Random) -> Incident:
    base = draw(random)
    seconds = random.uniform(0.3, 1.2)  # one prompt's prefill
    prompt = min(8000.0, max(400.0, seconds / base.machine.prefill_token_seconds))
    base = with_flags(
        base, max_num_seqs=256, kv_blocks=pool_of(base, 60 * (prompt + base.flags.max_num_batched_tokens))
    )
    onset = draw_onset(random)
    output = random.uniform(4, 12)
    rate = random.uniform(1.4, 2.0) / (prompt * base.machine.prefill_token_seconds)
    settle = 15 + 2 * base.objectives()["ttft_p99"] / (1 - 1 / 1.4)
    flows = (base.light(end=onset), more(base, onset, rate, prompt, output))
    return Incident(
        base,
        flows,
        "ttft_p99",
        "prompts come faster than prefill works them off",
        ("queue_prefill_backlog",),
        onset,
        settle,
    )


def _long_prompts(random: Random, base: Base) -> tuple[float, float]:
    """Prompt tokens whose prefill takes two to three times what was asked, at a rate that keeps it a third busy."""
    limit = base.objectives()["ttft_p99"]
    prompt = min(30_000.0, random.uniform(2.0, 3.0) * limit / base.machine.prefill_token_seconds)
    return prompt, random.uniform(0.2, 0.35) / (prompt * base.machine.prefill_token_seconds)


def _quick_to_answer(random: Random) -> Base:
    """A service of short prompts, of which an early first token is asked."""
    base = draw(random)
    return replace(base, prompt=min(base.prompt, 0.04 / base.machine.prefill_token_seconds))


def prefill_long_prompts(random: Random) -> Incident:
    base = _quick_to_answer(random)
    prompt, rate = _long_prompts(random, base)
    base = with_flags(base, kv_blocks=pool_of(base, 12 * prompt))
    onset = draw_onset(random)
    flow = replace(more(base, onset, rate, prompt, random.uniform(8, 20)), rate=0.0, every=1 / rate)
    limits = base.objectives() | _patient_streams(base)
    return Incident(
        base,
        (base.light(end=onset), flow),
        "ttft_p99",
        f"prompts of {prompt:.0f} tokens, little queueing",
        ("prefill_long_prompts",),
        onset,
        objectives=limits,
    )


def prefill_blocking(random: Random) -> Incident:
    """Short prompts as before, and beside them now and then one that takes a step of seconds."""
    base = _quick_to_answer(random)
    limit = base.objectives()["ttft_p99"]
    # In one step, and seldom enough that the engine is mostly free.
    step = random.uniform(3.0, 5.0) * limit
    prompt = min(30_000.0, step / base.machine.prefill_token_seconds)
    step = prompt * base.machine.prefill_token_seconds
    every = step / random.uniform(0.15, 0.35)
    # Requests that come in its first half wait longer than was asked: several for each of these prompts.
    rate = max(base.light().rate, random.uniform(6, 12) / step)
    base = with_flags(
        base,
        max_num_seqs=256,
        max_num_batched_tokens=32768,
        kv_blocks=pool_of(base, 4 * prompt + 4 * rate * step * (base.prompt + base.output)),
    )
    base = replace(base, output=min(base.output, 60.0))
    onset = draw_onset(random)
    usual = replace(base.light(), rate=rate)
    flow = replace(more(base, onset, 0.0, prompt, random.uniform(4, 12)), every=every, name="documents")
    longest = edge_above("itl", 2 * (step + base.pace(24)))
    limits = {"ttft_p99": limit, "itl_p99": longest, "itl_stall": max(1.0, longest)}
    return Incident(
        base,
        (usual, flow),
        "ttft_p99",
        f"a prompt of {prompt:.0f} tokens takes a step of {step:.1f} s every {every:.0f} s",
        ("prefill_blocking",),
        onset,
        settle=15 + 2 * every,
        objectives=limits,
    )


def _patient_streams(base: Base) -> dict[str, float]:
    """Stalls of a whole token budget are accepted here."""
    longest = base.flags.max_num_batched_tokens * base.machine.prefill_token_seconds + base.pace(4)
    return {"itl_p99": edge_above("itl", 1.5 * longest), "itl_stall": max(1.0, edge_above("itl", 1.5 * longest))}


def prefill_cache_off(random: Random) -> Incident:
    base = _quick_to_answer(random)
    prompt, rate = _long_prompts(random, base)
    base = with_flags(base, prefix_caching=False, kv_blocks=pool_of(base, 12 * prompt))
    onset = draw_onset(random)
    shared = replace(_evenly(base, onset, prompt, rate, random), prompt=Length(prompt * 1.03, 0.01), head=round(prompt))
    return Incident(
        base,
        (base.light(end=onset), shared),
        "ttft_p99",
        "shared heads, prefix caching off",
        ("prefill_cache_off",),
        onset,
        objectives=base.objectives() | _patient_streams(base),
    )


def prefill_cache_misses(random: Random) -> Incident:
    """The same prompts all along; from onset on their heads differ (somebody put the time of day in front)."""
    base = _quick_to_answer(random)
    prompt, rate = _long_prompts(random, base)
    base = with_flags(base, kv_blocks=pool_of(base, 12 * prompt))
    onset = draw_onset(random) + 180  # hits are known only after some minutes of them
    stamped = _evenly(base, onset, prompt, rate, random)
    shared = replace(
        stamped, prompt=Length(prompt * 1.03, 0.01), head=round(prompt), start=0.0, end=onset, name="assistant"
    )
    # The first one of a head is computed whole.
    warm = replace(shared, every=None, burst=1, end=1.0)
    incident = Incident(
        base,
        (replace(shared, start=20.0), warm, stamped),
        "ttft_p99",
        "heads no longer shared",
        ("prefill_cache_misses",),
        onset,
        objectives=base.objectives() | _patient_streams(base),
    )
    judge = (
        Judge(110.0, onset, ("healthy",)),
        Judge(onset + incident.settle, onset + incident.settle + LASTS, incident.accept),
    )
    return replace(incident, judge=judge)


def _evenly(base: Base, onset: float, prompt: float, rate: float, random: Random) -> Flow:
    flow = more(base, onset, rate, prompt, random.uniform(8, 20))
    return replace(flow, rate=0.0, every=1 / rate, name="stamped")


def prefill_slow(random: Random) -> Incident:
    """Another process takes compute from onset on: prompts take several times as long, decode reads as fast."""
    base = _quick_to_answer(random)
    limit = base.objectives()["ttft_p99"]
    prompt = min(30_000.0, random.uniform(0.25, 0.4) * limit / base.machine.prefill_token_seconds)
    speed = random.uniform(0.06, 0.12)
    # A third busy with prompts once they are slow.
    rate = random.uniform(0.2, 0.3) * speed / (prompt * base.machine.prefill_token_seconds)
    base = with_flags(base, kv_blocks=pool_of(base, 12 * prompt))
    onset = draw_onset(random) + 120
    flow = replace(_evenly(base, 0.0, prompt, rate, random), name="assistant")
    return Incident(
        base,
        (flow,),
        "ttft_p99",
        f"prompt tokens are computed at {speed:.2f} of the speed",
        ("prefill_slow",),
        onset,
        objectives=base.objectives() | _patient_streams(base),
        faults=Faults(prefill_speed=((onset, speed),)),
    )


def frontend(random: Random) -> Incident:
    base = _quick_to_answer(random)
    base = replace(base, busy=min(base.busy, 1.0))
    limits = base.objectives()
    onset = draw_onset(random)
    limits["ttft_p99"] = min(limits["ttft_p99"], 0.5)
    if random.random() < 0.5:
        stand = random.uniform(3, 5) * limits["ttft_p99"]
        # It runs too briefly for a first token to come back before it stands still again (a long job holds its loop):
        # a handler that starts late stamps a late arrival, and only what comes after that is in the server's TTFT.
        run = random.uniform(0.5, 0.9) * base.machine.step_seconds
        faults = Faults(frontend_speed=stop_and_go(onset, onset + 400, run, stand))
        return Incident(
            base,
            (base.light(),),
            "ttft_p99",
            f"the API server stands still {stand:.1f} s at a time",
            ("frontend",),
            onset,
            objectives=limits,
            faults=faults,
        )
    seconds = random.uniform(2.0, 3.0) * limits["ttft_p99"]
    costs = FrontEnd(tokenise_seconds=0.004)
    speed = costs.tokenise_seconds / seconds
    light = replace(base.light(), rate=min(base.light().rate, random.uniform(0.5, 0.75) / seconds))
    return Incident(
        base,
        (light,),
        "ttft_p99",
        f"tokenising takes {seconds:.1f} s",
        ("frontend",),
        onset,
        objectives=limits,
        frontend=costs,
        faults=Faults(frontend_speed=((onset, speed),)),
    )


def cold_start(random: Random) -> Incident:
    base = draw(random)
    limit = base.objectives()["ttft_p99"]
    steps = random.randint(2, 4)
    base = with_machine(base, cold_seconds=limit * random.uniform(2.0, 4.0), cold_prefills=steps)
    first = float(random.randrange(10, 30, 2))
    judge = (Judge(first + 20, first + 50, ("cold_start",)),)
    return Incident(
        base,
        (base.light(start=first, busy=max(1.5, base.busy)),),
        "ttft_p99",
        f"each of the first {steps} prefills compiles for {base.machine.cold_seconds:.1f} s",
        onset=first,
        settle=0.0,
        lasts=60.0,
        warm=False,
        judge=judge,
    )


def kv_transfer(random: Random) -> Incident:
    """A decode engine whose prompts' KV comes over a link that gets too slow for the traffic."""
    base = draw(random, ("a100", "h100"))
    base = replace(base, prompt=random.uniform(800, 3000))
    limits = base.objectives()
    onset = draw_onset(random)
    busy = random.uniform(3.0, 6.0)
    rate = busy / (base.output * base.pace(busy))
    # At the usual traffic the link is a fifth busy, from onset on more than it can do.
    token = random.uniform(1.2, 1.6) / (rate * base.prompt)
    limits["ttft_p99"] = max(limits["ttft_p99"], edge_above("ttft", 8 * base.prompt * token))
    base = with_flags(base, transfer=Transfer(token), kv_blocks=pool_of(base, 400 * base.prompt))
    usual = replace(base.light(end=onset), rate=0.2 * rate)
    settle = 10 + 10 * limits["ttft_p99"]
    return Incident(
        base,
        (usual, more(base, onset, rate)),
        "ttft_p99",
        "KV arrives slower than prompts come",
        ("kv_transfer",),
        onset,
        settle,
        objectives=limits,
    )


def kv_handovers(random: Random) -> Incident:
    """A decode engine to which a part of the prompts' KV no longer comes: it computes those itself."""
    base = _quick_to_answer(random)
    prompt, rate = _long_prompts(random, base)
    base = with_flags(base, transfer=Transfer(0.05 / (rate * prompt)), kv_blocks=pool_of(base, 40 * prompt))
    onset = draw_onset(random)
    flow = replace(_evenly(base, 0.0, prompt, rate, random), name="chat")
    return Incident(
        base,
        (flow,),
        "ttft_p99",
        "KV transfers fail",
        ("kv_transfer",),
        onset,
        settle=20.0,
        objectives=base.objectives() | _patient_streams(base),
        faults=Faults(transfers_fail=(onset, random.uniform(0.3, 0.7))),
    )


def kv_held(random: Random) -> Incident:
    """A prefill engine: one token a request, whose blocks the decode side soon collects, and from onset on late."""
    base = replace(draw(random), output=1.0)
    prompts = random.randint(12, 24)
    base = with_flags(base, max_num_seqs=256, kv_blocks=pool_of(base, prompts * base.prompt))
    onset = draw_onset(random)
    free_every = random.uniform(1.5, 3.0)  # seconds between two prompts whose blocks come free, once the pool is full
    rate = random.uniform(1.5, 2.3) / free_every
    limit = base.objectives()["ttft_p99"]
    settle = prompts / rate + 2 * limit / (1 - 1 / (rate * free_every)) + 15
    return Incident(
        base,
        (replace(base.light(), rate=rate, output=Length(1.0)),),
        "ttft_p99",
        "blocks of finished prompts are collected late",
        ("kv_held",),
        onset,
        settle,
        faults=Faults(blocks_kept=(onset, prompts * free_every)),
    )

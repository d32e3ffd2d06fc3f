"""Kinds of incidents in which tokens come slowly, and the one in which there are only many of them."""

from dataclasses import replace
from random import Random

from tools.simulator.config import Faults, Length, Speculation
from tools.simulator.incident import LASTS, Incident, draw_onset, more, pace_limits, streams_of
from tools.simulator.sizes import draw, edge_above, pool_of, with_flags, with_machine
from tools.simulator.speed import stop_and_go


def decode_interference(random: Random) -> Incident:
    """A prompt's prefill in one step stalls all streams, seldom but for seconds, or briefly but often."""
    seldom = random.random() < 0.5
    base = draw(random, ("cpu", "small") if seldom else ("small", "a100", "h100"))
    base = replace(base, prompt=min(base.prompt, 0.03 / base.machine.prefill_token_seconds))
    stall = random.uniform(1.7, 2.6) if seldom else random.uniform(0.25, 0.5)
    prompt = stall / base.machine.prefill_token_seconds
    base = with_flags(base, max_num_batched_tokens=max(2048, int(prompt * 1.3)), kv_blocks=pool_of(base, 20 * prompt))
    clients = random.randint(3, 6)
    limits = base.objectives() | {"ttft_p99": edge_above("ttft", 3 * stall), "itl_stall": 1.0}
    limits["itl_p99"] = edge_above("itl", 2 * base.pace(clients)) if not seldom else edge_above("itl", 2 * stall)
    onset = draw_onset(random)
    every = stall / random.uniform(0.2, 0.35)
    flow = replace(more(base, onset, 1.0, prompt, 4), rate=0.0, every=every, prompt=Length(prompt, 0.05))
    streams = streams_of(base, clients, random.uniform(15, 25) / base.pace(clients))
    misses = "itl_stall" if seldom else "itl_p99"
    return Incident(
        base,
        (streams, flow),
        misses,
        f"a prompt of {prompt:.0f} tokens every {every:.1f} s stalls {clients} streams",
        ("decode_interference",),
        onset,
        objectives=limits,
    )


def decode_pause(random: Random) -> Incident:
    """The engine stands still for some steps' time, every few tens of steps."""
    base = draw(random)
    clients = random.randint(3, 8)
    pace = base.pace(clients)
    base = replace(base, prompt=min(base.prompt, pace / base.machine.prefill_token_seconds))
    onset = draw_onset(random)
    pause, run = random.uniform(7, 12) * pace, random.uniform(30, 65) * pace
    limits = pace_limits(base, pace, itl_p99=edge_above("itl", 3 * pace), itl_stall=1.0)
    return Incident(
        base,
        (streams_of(base, clients, base.output),),
        "itl_p99",
        f"the engine pauses for {pause:.2f} s every {run + pause:.2f} s",
        ("decode_pause",),
        onset,
        objectives=limits,
        faults=Faults(engine_speed=stop_and_go(onset, onset + 2 * LASTS, run, pause)),
    )


def decode_batch(random: Random) -> Incident:
    base = draw(random)
    clients = random.randint(24, 120)
    base = replace(base, prompt=random.uniform(40, 120), output=random.uniform(200, 350))
    # What each stream adds makes the batch twice to three times as slow as a stream alone.
    adds = random.uniform(1.4, 2.2) * base.machine.step_seconds / clients
    base = with_machine(base, per_request_seconds=adds)
    base = with_flags(
        base,
        max_num_seqs=256,
        kv_blocks=pool_of(base, 2 * clients * (base.prompt + base.output)),
        max_num_batched_tokens=max(512, base.flags.max_num_batched_tokens),
    )
    onset = draw_onset(random)
    limits = pace_limits(base, base.pace(clients), itl_mean=1.4 * base.pace(2))
    streams = replace(streams_of(base, clients, base.output, onset), ramp=10.0)
    return Incident(
        base,
        (base.light(), streams),
        "itl_mean",
        f"{clients} streams at once",
        ("decode_batch",),
        onset,
        settle=20.0,
        objectives=limits,
    )


def decode_batch_cliff(random: Random) -> Incident:
    """One step more than graphs were captured for takes several times as long."""
    base = draw(random)
    captured = random.choice([4, 8, 16, 24])
    clients = captured + max(1, round(captured * random.uniform(0.1, 0.3)))
    base = replace(base, prompt=random.uniform(40, 120), output=random.uniform(200, 350))
    base = with_flags(base, max_num_seqs=256, kv_blocks=pool_of(base, 2 * clients * (base.prompt + base.output)))
    usual = base.pace(captured)
    base = with_machine(base, captured_batch=captured, uncaptured_seconds=random.uniform(2.5, 6.0) * usual)
    onset = draw_onset(random)
    limits = pace_limits(base, base.pace(clients), itl_mean=1.4 * usual)
    usual_streams = streams_of(base, captured, base.output)
    return Incident(
        base,
        (usual_streams, replace(streams_of(base, clients - captured, base.output, onset), name="more")),
        "itl_mean",
        f"{clients} streams, graphs up to {captured}",
        ("decode_batch_cliff",),
        onset,
        settle=20.0,
        objectives=limits,
    )


def decode_preemption(random: Random) -> Incident:
    base = draw(random)
    clients = random.randint(4, 8)
    seconds = random.uniform(14, 25)
    output = seconds / base.pace(clients)
    prompt = random.uniform(40, 100)
    share = random.uniform(0.36, 0.48)  # streams out of step hold half of what they grow to
    base = with_flags(
        base, max_num_seqs=64, kv_blocks=pool_of(base, share * clients * (prompt + output)), max_model_len=32768
    )
    base = replace(base, prompt=prompt, output=output)
    onset = draw_onset(random)
    streams = replace(streams_of(base, clients, output, onset, prompt=prompt), output=Length(output, 0.05))
    quiet = replace(base.light(end=onset), rate=base.rate(1.0, output=output / 4), output=Length(output / 4))
    limits = base.objectives() | {"itl_stall": 1.0}
    return Incident(
        base,
        (quiet, streams),
        "itl_stall",
        f"{clients} growing streams, a pool for {share * clients:.1f}",
        ("decode_preemption", "queue_kv_cache"),
        onset,
        settle=seconds,
        objectives=limits,
    )


def decode_context(random: Random) -> Incident:
    base = draw(random, ("a100", "h100"))
    clients, context = random.randint(3, 8), random.uniform(4000, 8000)
    base = replace(base, prompt=random.uniform(50, 150), output=random.uniform(150, 250))
    base = with_machine(
        base, per_context_token_seconds=random.uniform(1.5, 2.2) * base.machine.step_seconds / clients / context
    )
    base = with_flags(base, kv_blocks=pool_of(base, 3 * clients * context))
    onset = draw_onset(random)
    usual = base.machine.decode_seconds(clients, base.prompt + base.output / 2)
    limits = pace_limits(base, 3 * usual, itl_mean=1.4 * usual)
    long = replace(streams_of(base, clients, base.output, onset, prompt=context), repeat=True)
    settle = 10 + 2 * clients * context * base.machine.prefill_token_seconds
    limits["ttft_p99"] = max(
        limits["ttft_p99"], edge_above("ttft", 2 * clients * context * base.machine.prefill_token_seconds)
    )
    return Incident(
        base,
        (streams_of(base, clients, base.output, end=onset), long),
        "itl_mean",
        f"contexts grow to {context:.0f} tokens, cached",
        ("decode_context",),
        onset,
        settle,
        objectives=limits,
    )


def decode_slow(random: Random) -> Incident:
    base = draw(random)
    clients = random.randint(2, 6)
    onset = draw_onset(random)
    usual = base.pace(clients)
    speed = random.uniform(0.3, 0.45)
    limits = pace_limits(base, 3 * usual, itl_mean=1.4 * usual)
    return Incident(
        base,
        (streams_of(base, clients, base.output),),
        "itl_mean",
        f"the engine runs at {speed:.2f} of its speed",
        ("decode_slow",),
        onset,
        objectives=limits,
        faults=Faults(engine_speed=((onset, speed),)),
    )


def decode_bandwidth(random: Random) -> Incident:
    base = draw(random)
    limits = pace_limits(base, base.pace(2), itl_mean=base.machine.step_seconds / random.uniform(1.7, 2.5))
    return Incident(
        base,
        (base.light(busy=random.uniform(0.8, 1.8)),),
        "itl_mean",
        "the machine is slower than asked for even with one stream",
        ("decode_bandwidth",),
        objectives=limits,
    )


def decode_speculation(random: Random) -> Incident:
    base = draw(random)
    drafts = random.randint(3, 7)
    costs = random.uniform(1.0, 1.8) * base.machine.step_seconds / drafts
    base = with_machine(base, draft_token_seconds=costs)
    base = with_flags(base, speculation=Speculation(drafts, acceptance=random.uniform(0.02, 0.12)))
    clients = random.randint(2, 4)
    slow = base.pace(clients) + clients * drafts * (costs / clients + base.machine.per_request_seconds)
    base = with_machine(base, draft_token_seconds=costs / clients)
    limits = pace_limits(base, 2 * slow, tpot_mean=1.1 * base.pace(clients))
    return Incident(
        base,
        (streams_of(base, clients, base.output),),
        "tpot_mean",
        f"{drafts} drafts a step, nearly all rejected",
        ("decode_speculation",),
        objectives=limits,
    )


def output_length(random: Random) -> Incident:
    base = draw(random)
    onset = draw_onset(random)
    busy = random.uniform(3.0, 6.0)
    seconds = random.uniform(25, 40)
    long = seconds / base.pace(busy)
    base = with_flags(base, kv_blocks=pool_of(base, 40 * (base.prompt + long)))
    base = replace(base, output=long / random.uniform(8, 14))
    base = replace(base, prompt=min(base.prompt, 0.05 / base.machine.prefill_token_seconds))
    usual = 3 * base.output * base.pace(2 * base.busy) + base.objectives()["ttft_p99"]
    limits = base.objectives() | {"e2e_p99": edge_above("latency", usual)}
    flow = more(base, onset, base.rate(busy, output=long), output=long)
    return Incident(
        base,
        (base.light(end=onset), flow),
        "e2e_p99",
        f"answers of {long:.0f} tokens",
        ("output_length",),
        onset,
        settle=2 * seconds,
        objectives=limits,
    )

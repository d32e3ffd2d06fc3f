"""Healthy and idle services, and what is not about speed: hangs, restarts, failures, replicas that differ."""

from dataclasses import replace
from random import Random

from tools.simulator.config import Faults, Flow, Length, Server, Speculation
from tools.simulator.incident import LASTS, Incident, Judge, draw_onset, more, pace_limits, streams_of
from tools.simulator.sizes import Base, draw, pool_of, with_flags


def healthy(random: Random) -> Incident:
    """Light traffic with one of the habits that look odd on a page and hurt nobody."""
    base = draw(random)
    light = base.light(busy=base.busy * random.uniform(0.5, 2.0))
    shared = round(base.prompt / 2)
    habits: dict[str, tuple[Base, Flow]] = {
        "nothing special": (base, light),
        "some press the stop button": (base, replace(light, leave=0.15)),
        "most answers end by themselves": (base, replace(light, stop=0.8)),
        "prompts share their heads": (base, replace(light, head=shared)),
        "no prefix cache": (with_flags(base, prefix_caching=False), light),
        "a pool that is nearly full of live requests": (_snug(base), light),
        "drafts are mostly accepted": (with_flags(base, speculation=Speculation(3, 0.75)), light),
        "two API servers": (with_flags(base, api_servers=2), light),
        "two data parallel engines": (with_flags(base, data_parallel=2), replace(light, rate=1.5 * light.rate)),
    }
    habit = random.choice(list(habits))
    base, flow = habits[habit]
    return Incident(base, (flow,), None, f"light traffic, {habit}", ("healthy",))


def _snug(base: Base) -> Base:
    """A pool that the usual traffic fills, with a few long contexts' room left."""
    return with_flags(base, kv_blocks=pool_of(base, 8 * base.busy * (base.prompt + base.output) + 6 * base.prompt))


def idle(random: Random) -> Incident:
    base = draw(random)
    ends = random.choice((0.0, draw_onset(random)))
    flows = (base.light(end=ends),) if ends else ()
    return Incident(base, flows, None, "no traffic", ("idle",), onset=ends, settle=75.0 if ends else 15.0)


def engine_stalled(random: Random) -> Incident:
    base = draw(random)
    if random.random() < 0.25:
        # Between two short answers: no gauge tells, only connections that stay open.
        base = replace(base, output=min(base.output, 2 / base.pace(1)), prompt=min(base.prompt, 400))
        asks = Flow(Length(base.prompt, 0.2), Length(base.output, 0.2, 2), every=6.0, name="now and then")
        return Incident(
            base,
            (asks,),
            "progress",
            "the engine hangs while nobody asks",
            ("engine_stalled", "idle"),
            onset=71.0,
            settle=25.0,
            lasts=60.0,
            faults=Faults(engine_speed=((71.0, 0.0),)),
        )
    onset = draw_onset(random) + random.random()
    faults = Faults(engine_speed=((onset, 0.0),))
    clients = random.randint(2, 8)
    flows = (streams_of(base, clients, max(100.0, 4 / base.machine.step_seconds)),)
    return Incident(
        base,
        flows,
        "progress",
        "the engine hangs with requests running",
        ("engine_stalled",),
        onset,
        settle=20.0,
        lasts=60.0,
        faults=faults,
    )


def admission_stalled(random: Random) -> Incident:
    """Nobody is let in while answers flow: endless answers hold every slot, or the scheduler no longer admits."""
    base = draw(random)
    onset = draw_onset(random)
    if random.random() < 0.5:
        slots = random.randint(2, 6)
        base = with_flags(base, max_num_seqs=slots, kv_blocks=pool_of(base, 40_000 * slots))
        endless = replace(streams_of(base, slots, 400 / base.pace(slots), onset), ramp=0.5)
        flows: tuple[Flow, ...] = (replace(base.light(busy=0.7), timeout=None), endless)
        return Incident(
            base,
            flows,
            "ttft_p99",
            f"{slots} endless answers hold all slots",
            ("admission_stalled",),
            onset,
            settle=80.0,
            lasts=80.0,
        )
    faults = Faults(admission_stop=(onset, float("inf")))
    flows = (base.light(), streams_of(base, 2, 150 / base.pace(3)))
    return Incident(
        base,
        flows,
        "ttft_p99",
        "the scheduler admits nobody any more",
        ("admission_stalled",),
        onset,
        settle=75.0,
        lasts=50.0,
        faults=faults,
    )


def restart(random: Random) -> Incident:
    base = draw(random)
    onset, down = draw_onset(random), float(random.randrange(24, 60, 2))
    back = onset + down
    judge = (
        Judge(20, onset - 2, ("healthy",)),
        Judge(onset + 8, back - 4, ("down",)),
        Judge(back + 20, back + 80, ("healthy",)),
    )
    return Incident(
        base,
        (base.light(busy=max(1.5, base.busy)),),
        None,
        f"killed, back after {down:.0f} s",
        onset=onset,
        lasts=down + 70,
        faults=Faults(restart=(onset, down)),
        judge=judge,
    )


def _fleet(base: Base, random: Random, faults: tuple[int, Faults] | None = None) -> tuple[Server, ...]:
    count = random.randint(3, 4)
    return tuple(
        Server(
            base.machine, base.flags, faults=faults[1] if faults and faults[0] == n else Faults(), name=f"replica{n}"
        )
        for n in range(count)
    )


def load_imbalance(random: Random) -> Incident:
    base = draw(random)
    slots = random.randint(6, 16)
    base = replace(base, prompt=min(base.prompt, 0.15 / base.rate(slots) / base.machine.prefill_token_seconds))
    base = with_flags(base, max_num_seqs=slots, kv_blocks=pool_of(base, 8 * slots * (base.prompt + base.output)))
    servers = _fleet(base, random)
    share = random.uniform(0.7, 0.85)
    rest = (1 - share) / (len(servers) - 1)
    weights = (share, *(rest for _ in servers[1:]))
    # Enough for one to drown and for all together to have room.
    rate = base.rate(slots) * random.uniform(1.5, 1.9) / share
    flow = more(base, 0.0, rate)
    settle = 20 + 4 * base.objectives()["ttft_p99"] + base.output * base.pace(slots)
    judge = (Judge(settle, settle + LASTS, ("load_imbalance",), "model"),)
    return Incident(
        base,
        (flow,),
        "ttft_p99",
        f"one of {len(servers)} replicas gets {share:.0%} of the traffic",
        settle=settle,
        servers=servers,
        weights=weights,
        judge=judge,
        felt_by="replica0",
    )


def load_affinity(random: Random) -> Incident:
    """Prefix or session affinity without a limit: a replica gets all requests, its siblings stand idle."""
    base = draw(random)
    slots = random.randint(6, 16)
    prompt = min(base.prompt, 0.15 / base.rate(slots) / base.machine.prefill_token_seconds)
    base = replace(base, prompt=max(prompt, 8.0 * base.flags.block_size))
    base = with_flags(base, max_num_seqs=slots, kv_blocks=pool_of(base, 8 * slots * (base.prompt + base.output)))
    servers = _fleet(base, random)[: random.randint(2, 4)]
    head = round(random.uniform(0.8, 0.95) * base.prompt)
    flow = replace(more(base, 0.0, base.rate(slots) * random.uniform(1.5, 1.9)), head=head)
    settle = 20 + 4 * base.objectives()["ttft_p99"] + base.output * base.pace(slots)
    return Incident(
        base,
        (flow,),
        "ttft_p99",
        f"affinity sends everything to one of {len(servers)} replicas",
        settle=settle,
        servers=servers,
        weights=(1.0, *(0.0 for _ in servers[1:])),
        judge=(Judge(settle, settle + LASTS, ("load_imbalance",), "model"),),
        felt_by="replica0",
    )


def tokens_unequal(random: Random) -> Incident:
    """As many requests for each replica, but the long prompts all go to one, which cannot keep up."""
    base = draw(random)
    base = replace(base, prompt=min(base.prompt, 0.02 / base.machine.prefill_token_seconds))
    servers = _fleet(base, random)
    limit = base.objectives()["ttft_p99"]
    seconds = min(random.uniform(2.0, 3.0) * limit, 3.0)
    rate = random.uniform(0.4, 0.6) / seconds
    prompt = min(28_000.0, seconds / base.machine.prefill_token_seconds)
    servers = tuple(
        replace(one, flags=replace(one.flags, kv_blocks=pool_of(base, 20 * prompt), max_num_seqs=256))
        for one in servers
    )
    output = random.uniform(8, 20)
    flows = tuple(
        replace(
            more(base, 0.0, rate, prompt if number == 0 else prompt / random.uniform(8, 15), output),
            rate=0.0,
            every=1 / rate,
            start=random.uniform(0, 1 / rate),
            target=one.name,
            name=one.name,
        )
        for number, one in enumerate(servers)
    )
    limits = base.objectives() | {"itl_p99": 10.0, "itl_stall": 20.0}
    settle = 60.0
    return Incident(
        base,
        flows,
        "ttft_p99",
        f"one of {len(servers)} replicas gets prompts of {prompt:.0f} tokens, as often as the others short ones",
        settle=settle,
        objectives=limits,
        servers=servers,
        judge=(Judge(settle, settle + LASTS, ("load_imbalance",), "model"),),
        felt_by="replica0",
    )


def replica_outlier(random: Random) -> Incident:
    base = draw(random)
    onset, speed = draw_onset(random), random.uniform(0.25, 0.4)
    servers = _fleet(base, random, (0, Faults(engine_speed=((onset, speed),))))
    flow = replace(base.light(), rate=len(servers) * base.rate(2.0))
    limits = pace_limits(base, 3 * base.pace(4), itl_mean=1.35 * base.pace(3))
    end = onset + 15 + LASTS
    judge = (
        Judge(onset + 45, end, ("replica_outlier",), "model"),
        Judge(onset + 45, end, ("decode_slow", "replica_outlier"), target="replica0"),
    )
    return Incident(
        base,
        (flow,),
        "itl_mean",
        f"one of {len(servers)} replicas runs at {speed:.2f} of its speed",
        onset=onset,
        objectives=limits,
        servers=servers,
        judge=judge,
        felt_by="replica0",
    )


def requests_failing(random: Random) -> Incident:
    base = draw(random)
    base = replace(base, output=random.uniform(20, 60))
    light = base.light(busy=random.uniform(2, 4))
    # Enough to be no chance: about eight in a minute or more.
    onset, share = draw_onset(random), max(random.uniform(0.08, 0.4), min(0.5, 8 / 60 / light.rate))
    by_status = random.random() < 0.5
    faults = Faults(fail_5xx=(onset, share)) if by_status else Faults(fail_error=(onset, share))
    how = "answered with status 500" if by_status else "ended by the engine with an error"
    return Incident(
        base,
        (light,),
        "failing",
        f"{share:.0%} of the requests are {how}",
        ("requests_failing",),
        onset,
        settle=40.0,
        faults=faults,
    )

"""Healthy services whose pages look odd: little traffic, much, bursts, one slow request, a wake-up, a rolling restart.

Nobody may be accused in any of them.
"""

from dataclasses import replace
from random import Random

from tools.simulator.config import Faults, Flow, Length, Server
from tools.simulator.incident import LASTS, Incident, Judge, draw_onset
from tools.simulator.sizes import Base, draw, edge_above, pool_of, with_flags

WELL = ("healthy", "idle")


def quiet(random: Random) -> Incident:
    """A request every few seconds."""
    base = draw(random)
    return Incident(base, (base.light(busy=base.busy * random.uniform(0.1, 0.3)),), None, "little traffic", WELL)


def busy(random: Random) -> Incident:
    """Many streams at once, with room for twice as many."""
    base = draw(random)
    streams = random.uniform(4, 10)
    base = _roomy(replace(base, busy=streams), 4 * streams)
    return Incident(base, (base.light(),), None, f"{streams:.0f} streams at once, and room left", ("healthy",))


def bursty(random: Random) -> Incident:
    """So many requests at once every now and then, each time answered within what is asked for."""
    base = draw(random)
    size, apart = random.randint(4, 10), random.uniform(15, 40)
    base = _roomy(replace(base, busy=max(base.busy, size / 2)), 4 * size)
    usual = base.light(busy=0.5)
    times = [15 + n * apart for n in range(int((2 * LASTS - 15) / apart))]
    bursts = tuple(replace(usual, rate=0.0, burst=size, start=time, name=f"burst{time:.0f}") for time in times)
    # Limits that a burst meets too: its last first token, and the step that carries most of its prompts.
    prompts = min(2 * size * base.prompt, base.flags.max_num_batched_tokens) * base.machine.prefill_token_seconds
    step = prompts + base.pace(2 * size)
    limits = base.objectives()
    limits["ttft_p99"] = max(limits["ttft_p99"], edge_above("ttft", 1.5 * size * base.ttft(2 * base.prompt)))
    limits["itl_p99"] = max(limits["itl_p99"], edge_above("itl", 1.5 * step))
    limits["itl_stall"] = max(limits["itl_stall"], edge_above("itl", 2 * step))
    story = f"{size} requests at once every {apart:.0f} s"
    return Incident(base, (usual, *bursts), None, story, WELL, objectives=limits)


def seldom(random: Random) -> Incident:
    """One request a minute: too few for any percentile."""
    base = draw(random)
    asks = Flow(Length(base.prompt, 0.4, 8), Length(base.output, 0.4, 4), every=60.0, name="seldom")
    return Incident(base, (asks,), None, "one request a minute", WELL, settle=70.0, lasts=2 * LASTS)


def one_slow(random: Random) -> Incident:
    """Light traffic, and once a prompt that takes longer than the limit, in chunks that others do not feel."""
    base = draw(random)
    base = with_flags(base, long_prefill_token_threshold=max(32, round(base.prompt)))
    limits = base.objectives()
    tokens = min(20_000, limits["ttft_p99"] * random.uniform(1.5, 3) / base.machine.prefill_token_seconds)
    base = _roomy(base, 8 + 2 * tokens / (base.prompt + base.output))
    slow = Flow(Length(tokens), Length(base.output), burst=1, start=draw_onset(random), name="slow")
    story = f"one prompt of {tokens:.0f} tokens in light traffic"
    return Incident(base, (base.light(), slow), None, story, WELL, objectives=limits)


def wake_up(random: Random) -> Incident:
    """Nobody asks for minutes; then the usual traffic, at first on a machine that has to warm up again."""
    base = draw(random)
    onset, pause = draw_onset(random), random.uniform(60, 120)
    back = onset + pause
    flows = (base.light(end=onset), replace(base.light(start=back), name="again"))
    faults = Faults(engine_speed=((back, random.uniform(0.3, 0.6)), (back + 2, 1.0)))
    judge = (Judge(30, onset, WELL), Judge(onset, back, WELL), Judge(back, back + LASTS, WELL))
    story = f"no traffic for {pause:.0f} s, then the usual"
    return Incident(base, flows, None, story, onset=onset, lasts=pause + LASTS, faults=faults, judge=judge)


def rolling_restart(random: Random) -> Incident:
    """One replica after another is away for half a minute; the rest have room for its traffic."""
    base = draw(random)
    count, away = random.randint(3, 4), float(random.randrange(20, 40, 2))
    base = _roomy(base, 12)
    first, apart = draw_onset(random), away + random.uniform(20, 40)
    killed = [first + n * apart for n in range(count)]
    servers = tuple(
        Server(base.machine, base.flags, faults=Faults(restart=(time, away)), name=f"replica{n}")
        for n, time in enumerate(killed)
    )
    end = killed[-1] + away + LASTS / 2
    judge = (
        *(
            Judge(start, until, WELL, target=server.name)
            for server, time in zip(servers, killed, strict=True)
            for start, until in ((30, time - 2), (time + away + 20, end))
        ),
        Judge(30, end, WELL, "model"),
    )
    flow = replace(base.light(), rate=count * base.rate(base.busy / 2))
    return Incident(
        base, (flow,), None, f"{count} replicas restarted one by one, {away:.0f} s each", onset=first,
        lasts=end - first - 15, servers=servers, judge=judge, routing="least_loaded",
    )  # fmt: skip


def _roomy(base: Base, streams: float) -> Base:
    """With a pool and slots for so many streams."""
    return with_flags(
        base, max_num_seqs=max(base.flags.max_num_seqs, round(2 * streams)),
        kv_blocks=max(base.flags.kv_blocks, pool_of(base, streams * 3 * (base.prompt + base.output))),
    )  # fmt: skip

"""Time outside the engine: TTFT - queue - prefill, or e2e - TTFT - decode, is most of what is slow."""

from phasewatch.core.diagnosis.causes._row import AS_WRITTEN, Advice, CauseRow, Finding, Proposal, known
from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.formatting import number, seconds
from phasewatch.core.measures.phases import mean_of


def _frontend(case: Case) -> Finding | None:
    view = case.view
    late = case.symptom.objective.startswith("e2e")
    if not late and not case.symptom.objective.startswith("ttft"):
        return None
    parts = case.e2e if late else case.ttft
    outside, share, step = parts.by_phase.get("outside"), parts.share("outside"), view.numbers.itl_seconds.mean
    if outside is None or share is None or step is None or outside <= step:
        return None
    if not view.steady or view.stepless_with_work:
        return None
    # A standing queue's victims have not finished: their wait would look like front end.
    if not late and view.queued and (view.numbers.queue.expected_wait_seconds or 0.0) >= outside:
        return None
    where = "after the first token" if late else "before the first token"
    return Finding(
        max(share, parts.outside_alone) if parts.largest("outside") else share,
        known(
            outside_engine_seconds=outside,
            of_seconds=parts.whole,
            ttft_mean_seconds=mean_of(view.window, "ttft"),
            e2e_mean_seconds=mean_of(view.window, "e2e"),
            queue_mean_seconds=mean_of(view.window, "queue"),
            prefill_mean_seconds=mean_of(view.window, "prefill"),
            running_step_wait_seconds=parts.by_phase.get("running_step"),
            cpu_cores=view.cpu_cores,
            itl_mean_seconds=step,
        ),
        f"{seconds(outside)} of {seconds(parts.whole)} {where} are spent outside the engine (API server: tokenising,"
        " HTTP, streaming); queue and prefill do not explain them.",
        "client-side times that agree with queue + prefill, or an engine that stalled in this window.",
        at_most="high" if view.cpu_cores is not None and view.cpu_cores >= view.thresholds.busy_core else "medium",
    )


def _not_busy(view: WindowView) -> bool:
    return view.cpu_cores is not None and view.cpu_cores < view.thresholds.busy_core


def _may_be_busy(view: WindowView) -> bool:
    return not _not_busy(view)


def _more_servers(case: Case) -> Proposal | None:
    """CPU time is on the page where one process serves: several leave it out."""
    cores = case.view.cpu_cores
    if cores is None:
        return AS_WRITTEN
    return Proposal("--api-server-count 2", f"one process serves, and it uses {number(cores)} cores")


# fmt: off
CAUSE = CauseRow(
    verdict="frontend",
    phase="frontend",
    look="The front end's part in **Phases**; CPU of the API server, open connections.",
    rule=_frontend,
    families=("ttft", "e2e"),
    needs=("ttft", "queue", "prefill", "itl"),
    uses=("cpu_seconds",),
    remedies=(
        Advice("give the API server more CPU (cores, no throttling) and keep other processes off its cores",
            "tokenising, HTTP and streaming run there", "now", "the engine does not change", effect="cures",
            where="it uses a core, or that is not known", fits=_may_be_busy),
        Advice("find out what keeps the API server from running: CPU throttling (nr_throttled), a stopped process,"
            " blocking calls; then proxy and network", "it is slow and yet uses little CPU", "now",
            "the engine does not change", effect="eases", where="it uses less than a core", fits=_not_busy),
        Advice("--api-server-count up", "more processes share the work", "restart",
            "the engine does not change; process metrics go away", since="0.9.1", effect="eases",
            where="it uses a core, or that is not known", fits=_may_be_busy, proposes=_more_servers),
        Advice("VLLM_USE_FASTOKENS=1", "a faster tokeniser", "restart", "the engine does not change", since="0.23.0",
            where="it uses a core, or that is not known", fits=_may_be_busy),
        Advice("--renderer-num-workers up", "chat templates and tokenising get more threads", "restart",
            "the engine does not change", since="0.19.0", where="it uses a core, or that is not known",
            fits=_may_be_busy),
        Advice("--stream-interval above 1", "fewer chunks to send", "restart", "clients see tokens in small groups",
            since="0.11.1", where="it uses a core, or that is not known", fits=_may_be_busy),
    ),
)
# fmt: on

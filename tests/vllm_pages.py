"""vLLM servers that a test drives by hand: what requests did goes in, the real text of /metrics comes out.

Families, labels and edges are those of vLLM 0.32 (one engine or several, single process); `old=True` writes what
0.8.5 wrote, `http=False` and `process=False` leave those families out (several API servers have no process_*).
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from phasewatch.core.model import EngineReport, Fleet, Page
from phasewatch.core.pages.exposition import parse
from phasewatch.core.settings import Estimator, Settings, parse_objectives
from phasewatch.core.watch import Watcher
from support_pages import strip_page
from tools.simulator.metrics import EDGES, token_edges

_GAUGES = {"num_requests_running": "running", "num_requests_waiting": "waiting", "kv_cache_usage_perc": "kv"}
_COUNTERS = (
    "prompt_tokens_total", "generation_tokens_total", "num_preemptions_total", "prefix_cache_queries_total",
    "prefix_cache_hits_total",
)  # fmt: skip
# Family -> kind of edges; None: token counts.
_HISTOGRAMS: dict[str, str | None] = {
    "time_to_first_token_seconds": "ttft",
    "inter_token_latency_seconds": "itl",
    "iteration_tokens_total": "iteration",
    "e2e_request_latency_seconds": "latency",
    "request_queue_time_seconds": "latency",
    "request_prefill_time_seconds": "latency",
    "request_decode_time_seconds": "latency",
    "request_inference_time_seconds": "latency",
    "request_time_per_output_token_seconds": "latency",
    "request_prompt_tokens": None,
    "request_generation_tokens": None,
    "request_prefill_kv_computed_tokens": None,
}
_REASONS = ("stop", "length", "abort", "error")
# What 0.8.5 calls it; None: not there yet.
_OLD = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "prefix_cache_queries_total": "gpu_prefix_cache_queries_total",
    "prefix_cache_hits_total": "gpu_prefix_cache_hits_total",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
    "num_requests_waiting_by_reason": None,
    "engine_sleep_state": None,
    "prompt_tokens_by_source_total": None,
    "request_time_per_output_token_seconds": None,
    "request_prefill_kv_computed_tokens": None,
    "admission_rejections_total": None,
}
STARTED = 1.7e9  # Unix time at which every server starts


class Engine:
    """One engine's books. Gauges stay as set; everything else only grows."""

    def __init__(self, server: "Server", model_name: str, label: str, max_model_len: int) -> None:
        self._server = server
        self.id = (model_name, label)
        self._max_model_len = max_model_len
        self.blocks: int | None = 4000
        self.block_size = 16
        self.prefix_caching = True
        self.zero()

    def zero(self) -> None:
        """As after a start of the process."""
        self.gauges: dict[str, float] = {"running": 0.0, "waiting": 0.0, "deferred": 0.0, "kv": 0.0, "awake": 1.0}
        self.counters: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._sums: Counter[str] = Counter()

    def set(self, **gauges: float) -> "Engine":
        """running, waiting (all), deferred (of those waiting), kv (0 to 1), awake."""
        assert gauges.keys() <= self.gauges.keys()
        self.gauges |= gauges
        return self

    def observe(self, family: str, value: float, times: float = 1) -> None:
        """Into a histogram by vLLM's name without prefix."""
        self._counts[family][bisect_left(self.edges(family), value)] += times  # type: ignore[assignment]
        self._sums[family] += value * times  # type: ignore[assignment]

    def first_tokens(self, ttft: float, times: int = 1, *, prompt: int = 100, cached: int = 0) -> None:
        """Requests get their first token: each prompt in a step of its own."""
        self.observe("time_to_first_token_seconds", ttft, times)
        self.observe("iteration_tokens_total", prompt - cached, times)
        self.counters["prompt_tokens_total"] += prompt * times
        self.counters["computed"] += (prompt - cached) * times
        self.counters["prefix_cache_queries_total"] += prompt * times if self.prefix_caching else 0
        self.counters["prefix_cache_hits_total"] += cached * times
        self.counters["generation_tokens_total"] += times

    def tokens(self, gap: float, times: int, *, batch: float = 1) -> None:
        """Later tokens, each `gap` seconds after the one before, `batch` of them a step."""
        self.observe("inter_token_latency_seconds", gap, times)
        self.observe("iteration_tokens_total", batch, round(times / batch))
        self.counters["generation_tokens_total"] += times

    def finishes(
        self, times: int = 1, *, reason: str = "stop", queue: float = 0.0, prefill: float = 0.05, decode: float = 1.0,
        outside: float = 0.005, prompt: int = 100, cached: int = 0, output: int = 20, late: float = 0.0,
        answered: bool = True,
    ) -> None:  # fmt: skip
        """Requests end. outside, late: seconds in the front end, before the first token and after the last one.
        answered: the web server counts it now as well."""
        self.observe("e2e_request_latency_seconds", outside + queue + prefill + decode + late, times)
        self.observe("request_queue_time_seconds", queue, times)
        self.observe("request_prefill_time_seconds", prefill, times)
        self.observe("request_decode_time_seconds", decode, times)
        self.observe("request_inference_time_seconds", prefill + decode, times)
        if output > 1:
            self.observe("request_time_per_output_token_seconds", decode / (output - 1), times)
        self.observe("request_prompt_tokens", prompt, times)
        self.observe("request_generation_tokens", output, times)
        self.observe("request_prefill_kv_computed_tokens", prompt - cached, times)
        self.finished[reason] += times
        if answered:
            self._server.answers(times)

    def serves(
        self, times: int = 1, *, queue: float = 0.0, prefill: float = 0.05, outside: float = 0.005, itl: float = 0.03,
        prompt: int = 100, cached: int = 0, output: int = 20, batch: float = 1,
    ) -> None:  # fmt: skip
        """Whole requests, from arrival to answer."""
        self.first_tokens(queue + prefill + outside, times, prompt=prompt, cached=cached)
        self.tokens(itl, times * (output - 1), batch=batch)
        self.finishes(
            times, queue=queue, prefill=prefill, decode=itl * (output - 1), outside=outside, prompt=prompt,
            cached=cached, output=output,
        )  # fmt: skip

    def edges(self, family: str) -> tuple[float, ...]:
        kind = _HISTOGRAMS[family]
        return token_edges(self._max_model_len) if kind is None else tuple(map(float, EDGES[kind]))

    def waiting(self) -> dict[str, float]:
        """By reason."""
        return {
            "capacity": self.gauges["waiting"] - self.gauges["deferred"],
            "deferred": self.gauges["deferred"],
        }

    def labels(self, **more: str) -> str:
        return _labels(model_name=self.id[0], engine=self.id[1], **more)

    def histogram(self, family: str) -> Iterator[tuple[str, str, float]]:
        """Suffix, labels and value of its samples."""
        edges = [*map(str, self.edges(family)), "+Inf"]
        for edge, count in zip(edges, accumulate(self._counts[family][at] for at in range(len(edges))), strict=True):
            yield "_bucket", self.labels(le=edge), count
        yield "_count", self.labels(), self._counts[family].total()
        yield "_sum", self.labels(), self._sums[family]


class Server:
    """One target: its engines and its web server."""

    def __init__(
        self, engines: int = 1, *, name: str = "s", model_name: str = "m", max_model_len: int = 8192, http: bool = True,
        process: bool = True, old: bool = False, only: Iterable[str] | None = None,
    ) -> None:  # fmt: skip
        """only: full names of the families that the page keeps (see support_pages.strip_page)."""
        self.name, self.http, self.process, self.old = name, http, process, old
        self._only = None if only is None else tuple(only)
        self.engines = tuple(Engine(self, model_name, str(n), max_model_len) for n in range(engines))
        self.started = STARTED
        self.fds, self.cpu_seconds, self.rejections = 40.0, 1.0, 0
        self.statuses: Counter[str] = Counter()

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    def answers(self, times: int = 1, status: str = "2xx") -> None:
        """The web server is done with requests; a client that hung up counts as 2xx, as vLLM has it."""
        self.statuses[status] += times

    def restart(self, at: float) -> None:
        """A new process, started `at` seconds after the first one."""
        self.started = STARTED + at
        self.statuses.clear()
        self.cpu_seconds, self.rejections = 1.0, 0
        for engine in self.engines:
            engine.zero()

    def text(self) -> str:
        lines: list[str] = []
        for name, kind, samples in self._families():
            lines += (f"# HELP {name} {name}", f"# TYPE {name} {kind}")
            lines += (f"{name}{suffix}{labels} {value}" for suffix, labels, value in samples)
        text = "\n".join(lines) + "\n"
        return text if self._only is None else strip_page(text, self._only)

    def page(self, at: float) -> Page:
        return parse(self.text(), at=at)

    def _families(self) -> Iterator[tuple[str, str, list[tuple[str, str, float]]]]:
        """Name, type and samples (suffix, labels, value) of each family on the page."""
        if self.process:
            yield "process_start_time_seconds", "gauge", [("", "", self.started)]
            yield "process_open_fds", "gauge", [("", "", self.fds)]
            yield "process_cpu_seconds_total", "counter", [("", "", self.cpu_seconds)]
        for name, kind, samples in self._engine_families():
            exposed = _OLD.get(name, name) if self.old else name
            if exposed is not None:
                yield f"vllm:{exposed}", kind, samples
        if self.http:
            handler = {"handler": "/v1/completions", "method": "POST"}
            yield (
                "http_requests_total", "counter",
                [("", _labels(**handler, status=status), value) for status, value in self.statuses.items()],
            )  # fmt: skip

    def _engine_families(self) -> Iterator[tuple[str, str, list[tuple[str, str, float]]]]:
        for name, gauge in _GAUGES.items():
            yield name, "gauge", [("", one.labels(), one.gauges[gauge]) for one in self.engines]
        yield (
            "num_requests_waiting_by_reason",
            "gauge",
            [("", one.labels(reason=reason), value) for one in self.engines for reason, value in one.waiting().items()],
        )
        yield (
            "engine_sleep_state",
            "gauge",
            [("", one.labels(sleep_state="awake"), one.gauges["awake"]) for one in self.engines],
        )
        yield "cache_config_info", "gauge", [("", self._cache_config(one), 1) for one in self.engines]
        for name in _COUNTERS:
            yield name, "counter", [("", one.labels(), one.counters[name]) for one in self.engines]
            if self.process:  # several processes share files, which keep no creation times
                born = name.removesuffix("_total") + "_created"
                yield born, "gauge", [("", one.labels(), self.started) for one in self.engines]
        yield (
            "request_success_total",
            "counter",
            [
                ("", one.labels(finished_reason=reason), one.finished[reason])
                for one in self.engines
                for reason in _REASONS[: 3 if self.old else 4]
            ],
        )
        yield (
            "prompt_tokens_by_source_total",
            "counter",
            [("", one.labels(source="local_compute"), one.counters["computed"]) for one in self.engines],
        )
        yield (
            "admission_rejections_total",
            "counter",
            [("", _labels(model_name=self.engine.id[0], reason="max_num_queued_reqs"), self.rejections)],
        )
        for name in _HISTOGRAMS:
            yield name, "histogram", [sample for one in self.engines for sample in one.histogram(name)]

    def _cache_config(self, engine: Engine) -> str:
        return _labels(
            engine=engine.id[1],
            block_size=str(engine.block_size),
            num_gpu_blocks=str(None if engine.blocks is None else engine.blocks * len(self.engines)),
            enable_prefix_caching=str(engine.prefix_caching),
        )


def _labels(**values: str) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in values.items()) + "}"


Traffic = Callable[[], object]


class Scene:
    """Servers watched at an interval: time goes on with every round.

    estimator: the quick one, where a test is not about percentiles or the rules that read them.
    """

    def __init__(
        self,
        *servers: Server,
        interval: float = 10.0,
        objectives: Iterable[str] = (),
        estimator: Estimator = "interpolation",
        roles: Mapping[str, str] | None = None,
    ) -> None:
        self.servers = servers
        self.interval, self.now = interval, 0.0
        self.watcher = Watcher(Settings(objectives=parse_objectives(objectives), estimator=estimator), roles)

    def round(self, traffic: Traffic | None = None, *, fails: Iterable[str] = ()) -> Fleet:
        """One interval passes with this traffic; then every server is scraped (these fail) and all is judged."""
        self.now += self.interval
        if traffic is not None:
            traffic()
        for server in self.servers:
            if server.name in fails:
                self.watcher.failure(server.name, self.now, "timeout")
            else:
                self.watcher.page(server.name, server.page(self.now))
        return self.watcher.evaluate(self.now)

    def rounds(self, seconds: float, traffic: Traffic | None = None, *, fails: Iterable[str] = ()) -> list[Fleet]:
        """At least one round."""
        return [self.round(traffic, fails=fails) for _ in range(max(1, round(seconds / self.interval)))]

    def after(self, seconds: float, traffic: Traffic | None = None, *, fails: Iterable[str] = ()) -> EngineReport:
        """The first engine's report after so many seconds of this traffic."""
        return self.rounds(seconds, traffic, fails=fails)[-1].engines[0]


def answer(report: EngineReport) -> str:
    """The leading verdict, or the state where there is none: what a document counts by."""
    return report.verdict or report.state

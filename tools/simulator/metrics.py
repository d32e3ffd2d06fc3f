"""The page of /metrics as vLLM 0.32 writes it (text 0.0.4), as direct text so that a page costs well under 1 ms.

families.tsv lists the families, their labels and HELP as on captured pages; the edges are those of vllm-metrics.md 1.0.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from prometheus_client import utils

from tools.simulator.config import Flags

HANDLER = "/v1/completions"


def _number(value: float) -> str:
    return str(utils.floatToGoString(value))  # type: ignore[no-untyped-call]


_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
EDGES: dict[str, tuple[float, ...]] = {
    "latency": _LATENCY,
    "ttft": (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
        2560,
    ),
    "itl": _ITL,
    "iteration": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "n": (1, 2, 5, 10, 20),
    "preemptions": (1, 2, 3, 4, 5, 10, 20),
    "xfer": _TRANSFER,
    "post": (0.001, *_TRANSFER),
    "bytes": tuple(2.0**power for power in range(11, 34, 2)),
    "descriptors": (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000),
    "highr": (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),
    "coarse": (0.1, 0.5, 1),
}  # fmt: skip

# vLLM's defaults for what the simulator does not vary; the rest of the labels follows from the flags.
_CACHE_CONFIG = {
    "_block_size_resolved": "True", "cache_dtype": "auto", "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False", "gpu_memory_utilization": "0.92", "hash_block_size": "None",
    "is_attention_free": "False", "kv_cache_dtype_skip_layers": "[]", "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None", "kv_offloading_backend": "native", "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False", "mamba_block_size": "None", "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none", "mamba_page_size_padded": "None", "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None", "num_gpu_blocks_override": "None", "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256", "prefix_match_unit": "None", "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None", "sliding_window": "None", "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False", "use_replayssm": "False", "user_specified_block_size": "False",
}  # fmt: skip

_PROCESS = {"process_max_fds": 65536.0, "process_virtual_memory_bytes": 3e9, "process_resident_memory_bytes": 9e8}


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: Literal["gauge", "counter", "histogram", "summary"]
    when: Literal["always", "speculation", "transfer"]
    scope: Literal["engine", "model", "info", "http", "process"]
    edges: str
    label: str
    values: tuple[str, ...]
    help: str


@cache
def families() -> tuple[Family, ...]:
    text = (files("tools.simulator") / "families.tsv").read_text(encoding="utf-8")
    return tuple(_family(line.split("	")) for line in text.splitlines() if not line.startswith("#"))


def _family(row: list[str]) -> Family:
    name, kind, when, scope, edges, label, values, text = row
    return Family(name, kind, when, scope, edges, label, tuple(filter(None, values.split(","))), text)  # type: ignore[arg-type]


def token_edges(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5 a decade, none above max_model_len."""
    steps = (float(m * 10**power) for power in range(8) for m in (1, 2, 5))
    return tuple(edge for edge in steps if edge <= max_model_len)


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Book:
    """Values of one engine ("family" or "family/label value") and its histograms; also the web server's."""

    def __init__(self, edges: dict[str, tuple[float, ...]]) -> None:
        self.values: defaultdict[str, float] = defaultdict(float)
        self.histograms = {name: Histogram(bounds) for name, bounds in edges.items()}


class Page:
    """One server process's page. In multiprocess mode there is no process_*, no python_* and no _created series.

    created: Unix time of the process' first metric; started: of the process.
    """

    def __init__(self, flags: Flags, model_name: str, created: float, started: float) -> None:
        tokens = token_edges(flags.max_model_len)
        there = {"always"} | ({"speculation"} if flags.speculation else set())
        there |= {"transfer"} if flags.transfer else set()
        single = flags.api_servers == 1 and flags.data_parallel == 1
        rows = [row for row in families() if row.when in there and (single or row.scope != "process")]
        edges = {row.name: tokens if row.edges == "tokens" else EDGES[row.edges] for row in rows if row.edges}
        self.engines = [
            Book({row.name: edges[row.name] for row in rows if row.scope == "engine" and row.edges})
            for _ in range(flags.data_parallel)
        ]
        self.web = Book({row.name: edges[row.name] for row in rows if row.scope == "http" and row.edges})
        self.statuses: dict[str, int] = {}
        self.cpu_seconds = 0.0
        self.open_connections = 0
        self._flags, self._model = flags, model_name
        self._created, self._single = _number(created), single
        self.web.values["process_start_time_seconds"] = started
        # Rows of text, of (prefix, book, key) and of histograms, in page order.
        self._parts: list[str | tuple[str, Book, str] | tuple[list[str], Histogram]] = []
        for row in rows:
            getattr(self, f"_add_{row.scope}")(row)
        for book in self.engines:
            book.values["vllm:engine_sleep_state/awake"] = 1.0

    def render(self, cpu_seconds: float) -> str:
        values = self.web.values
        values["process_cpu_seconds_total"] = cpu_seconds
        values["process_open_fds"] = 32.0 + self.open_connections
        out: list[str] = []
        for part in self._parts:
            if isinstance(part, str):
                out.append(part)
            elif len(part) == 3:
                out.append(f"{part[0]}{_number(part[1].values[part[2]])}\n")
            else:
                out.append(self._histogram(*part))
        out.append(self._http())
        return "".join(out)

    @staticmethod
    def _histogram(prefixes: list[str], histogram: Histogram) -> str:
        out, running = [], 0
        for prefix, count in zip(prefixes, histogram.counts, strict=False):
            running += count
            out.append(f"{prefix}{running}.0\n")
        out.append(f"{prefixes[-2]}{running}.0\n{prefixes[-1]}{_number(histogram.total)}\n")
        return "".join(out)

    @staticmethod
    def _prefixes(name: str, bounds: tuple[float, ...], labels: dict[str, str]) -> list[str]:
        edges = [*map(_number, bounds), "+Inf"]
        buckets = [f"{name}_bucket{_labels(labels | {'le': edge})} " for edge in edges]
        return [*buckets, f"{name}_count{_labels(labels)} ", f"{name}_sum{_labels(labels)} "]

    def _head(self, row: Family) -> str:
        return f"# HELP {row.name} {row.help}\n# TYPE {row.name} {row.kind}\n"

    def _created_text(self, row: Family, labels: list[dict[str, str]]) -> str:
        if not self._single or row.kind == "gauge":
            return ""
        name = row.name if row.kind == "histogram" else row.name.removesuffix("_total")
        lines = "".join(f"{name}_created{_labels(each)} {self._created}\n" for each in labels)
        return f"# HELP {name}_created {row.help}\n# TYPE {name}_created gauge\n{lines}"

    def _add_engine(self, row: Family) -> None:
        self._parts.append(self._head(row))
        values = row.values
        if row.label == "position" and self._flags.speculation:
            values = tuple(map(str, range(self._flags.speculation.drafts)))
        created = []
        for index, book in enumerate(self.engines):
            labels = {"engine": str(index), "model_name": self._model}
            if row.kind == "histogram":
                histogram = book.histograms[row.name]
                self._parts.append((self._prefixes(row.name, histogram.bounds, labels), histogram))
                created.append(labels)
            elif row.label:
                for value in values:
                    each = labels | {row.label: value}
                    self._parts.append((f"{row.name}{_labels(each)} ", book, f"{row.name}/{value}"))
                    created.append(each)
            else:
                self._parts.append((f"{row.name}{_labels(labels)} ", book, row.name))
                created.append(labels)
        self._parts.append(self._created_text(row, created))

    def _add_model(self, row: Family) -> None:
        labels = [{"model_name": self._model, row.label: value} for value in row.values]
        self._parts.append(self._head(row))
        for each in labels:
            self._parts.append((f"{row.name}{_labels(each)} ", self.web, f"{row.name}/{each[row.label]}"))
        self._parts.append(self._created_text(row, labels))

    def _add_info(self, row: Family) -> None:
        flags = self._flags
        tokens = flags.kv_blocks * flags.block_size
        self._parts.append(self._head(row))
        for index in range(flags.data_parallel):
            labels = _CACHE_CONFIG | {
                "block_size": str(flags.block_size),
                "effective_attention_block_size": str(flags.block_size),
                "enable_prefix_caching": str(flags.prefix_caching),
                "engine": str(index),
                "kv_cache_max_concurrency": str(tokens / flags.max_model_len),
                "kv_cache_size_tokens": str(tokens),
                # The label holds the sum over the engines of a client.
                "num_gpu_blocks": str(flags.kv_blocks * flags.data_parallel),
            }
            self._parts.append(f"{row.name}{_labels(labels)} 1.0\n")

    def _add_process(self, row: Family) -> None:
        self._parts.append(self._head(row))
        if row.name.startswith("python_gc"):
            lines = (f'{row.name}{{generation="{g}"}} {n}.0\n' for g, n in ((0, 1577), (1, 143), (2, 10)))
            self._parts.append("".join(lines))
        elif row.name == "python_info":
            version = 'implementation="CPython",major="3",minor="12",patchlevel="3",version="3.12.3"'
            self._parts.append(f"{row.name}{{{version}}} 1.0\n")
        else:
            self._parts.append((f"{row.name} ", self.web, row.name))
            fixed = {
                "process_max_fds": 65536.0,
                "process_virtual_memory_bytes": 3e9,
                "process_resident_memory_bytes": 9e8,
            }
            self.web.values[row.name] = fixed.get(row.name, self.web.values[row.name])

    def _add_http(self, row: Family) -> None:
        """Made on the fly: children appear with their first event."""

    # --- the web server's families --------------------------------------------------------------------------------

    def http_finish(self, status: str, seconds: float, request_bytes: int) -> None:
        """A request's connection ended. seconds: from its acceptance to the last byte of the stream."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.web.values["http_request_size_bytes"] += request_bytes
        for name in ("http_request_duration_highr_seconds", "http_request_duration_seconds"):
            self.web.histograms[name].observe(seconds)

    def _http(self) -> str:
        out: list[str] = []
        count = sum(self.statuses.values())
        for row in families():
            if row.scope != "http":
                continue
            out.append(self._head(row))
            labels: list[dict[str, str]] = [{"handler": HANDLER}] if count else []
            if row.name == "http_requests_total":
                labels = [{"handler": HANDLER, "method": "POST", "status": status} for status in self.statuses]
                out += [f"{row.name}{_labels(each)} {self.statuses[each['status']]}.0\n" for each in labels]
            elif row.kind == "summary":
                for each in labels:
                    size = _number(self.web.values[row.name])
                    out.append(f"{row.name}_count{_labels(each)} {count}.0\n{row.name}_sum{_labels(each)} {size}\n")
            else:
                if row.edges == "highr":
                    labels = [{}]
                labels = [each | ({"method": "POST"} if each else {}) for each in labels]
                histogram = self.web.histograms[row.name]
                out += [self._histogram(self._prefixes(row.name, histogram.bounds, each), histogram) for each in labels]
            out.append(self._created_text(row, labels))
        return "".join(out)


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"

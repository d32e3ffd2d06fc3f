"""What happened to an engine between two pages: it began anew or woke up, or what it is made of changed."""

from collections.abc import Iterator, Mapping

from phasewatch.core.model import Event, Snapshot

# Labels that say how much the KV cache holds, which memory at the start decides: a change of them is one of capacity.
_CAPACITY = ("num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency")


def first_events(page: Snapshot, replaced: str | None = None, model_name: str = "") -> Iterator[Event]:
    """Of an engine's first page. replaced: the model that its target served before."""
    if replaced is not None:
        yield Event(page.at, "model", replaced, model_name)
    first = page.histograms.get("ttft")
    made = page.counters.get("generation_tokens"), None if first is None else first.count
    if any(count == 0 for count in made) and not any(made):
        yield Event(page.at, "start", None, page.gauges.get("start_time"))


def events(before: Snapshot, after: Snapshot, *, restarted: bool) -> Iterator[Event]:
    """Between two pages in turn."""
    at = after.at
    if restarted:
        yield Event(at, "restart", before.gauges.get("start_time"), after.gauges.get("start_time"))
    elif before.gauges.get("awake") == 0 and after.gauges.get("awake", 0.0) > 0:
        yield Event(at, "wake_up", "asleep", "awake")
    if before.labels is after.labels or before.labels == after.labels:
        return
    old, new = capacity_tokens(before.gauges), capacity_tokens(after.gauges)
    if old is not None and new is not None and old != new:
        yield Event(at, "capacity", old, new)
    adapters = before.labels.get("adapters"), after.labels.get("adapters")
    if set((adapters[1] or "").split(", ")) - {*(adapters[0] or "").split(", "), ""}:
        yield Event(at, "adapters", *adapters)
    was, now = _configuration(before.labels), _configuration(after.labels)
    if restarted and was and now and was.keys() != now.keys():
        yield Event(at, "version", _listed(was.keys() - now.keys()), _listed(now.keys() - was.keys()))
    changed = [name for name in was if name in now and was[name] != now[name]]
    if changed:
        yield Event(at, "configuration", *(_written({name: of[name] for name in changed}) for of in (was, now)))


def capacity_tokens(gauges: Mapping[str, float]) -> float | None:
    """KV capacity of the engine in tokens: kv_cache_size_tokens, else blocks x block size."""
    if "kv_capacity_tokens" in gauges:
        return gauges["kv_capacity_tokens"]
    if "kv_blocks" in gauges and "block_size" in gauges:
        return gauges["kv_blocks"] * gauges["block_size"]
    return None


def _configuration(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != "adapters" and name not in _CAPACITY}


def _listed(names: set[str]) -> str | None:
    return ", ".join(sorted(names)) or None


def _written(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())

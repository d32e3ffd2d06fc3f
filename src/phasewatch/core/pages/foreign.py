"""Pages that are not vLLM's: whose they are by the names of their families, and what to scrape instead."""

from collections.abc import Collection
from typing import NamedTuple

_OTHER_ENGINE = "reads vLLM's only"
_IN_FRONT = "reads vLLM's; scrape the vLLM servers behind it"
_BESIDE = "reads vLLM's; scrape the vLLM server itself, on port 8000 by default"


class _Owner(NamedTuple):
    """prefixes: of names that nobody else has. advice: what phasewatch does or needs, after its name."""

    whose: str
    prefixes: tuple[str, ...]
    advice: str


# The first that fits: engines before what passes their families on, or runs beside them.
_OWNERS: tuple[_Owner, ...] = (
    _Owner("SGLang's", ("sglang:", "sglang_"), _OTHER_ENGINE),
    _Owner("TensorRT-LLM's", ("trtllm_", "nv_trt_llm_"), _OTHER_ENGINE),
    _Owner("Text Generation Inference's", ("tgi_",), _OTHER_ENGINE),
    _Owner("llama.cpp's", ("llamacpp:",), _OTHER_ENGINE),
    _Owner("an Ollama exporter's", ("ollama_",), _OTHER_ENGINE),
    _Owner(
        "vLLM-Omni's",
        ("vllm:omni_", "vllm_omni:"),
        "reads those of its LLM stages, which are absent; start it with --log-stats if it has any",
    ),
    _Owner("Triton's", ("nv_inference_",), _OTHER_ENGINE),
    _Owner("Dynamo's", ("dynamo_frontend_", "dynamo_component_"), _IN_FRONT),
    _Owner("LiteLLM's", ("litellm_",), _IN_FRONT),
    _Owner("phasewatch's own", ("phasewatch_",), _BESIDE),
    _Owner("the DCGM exporter's", ("DCGM_FI_",), _BESIDE),
    _Owner("the node exporter's", ("node_exporter_", "node_cpu_seconds_", "node_memory_"), _BESIDE),
    _Owner("Prometheus'", ("prometheus_tsdb_",), _BESIDE),
    _Owner("Ray's", ("ray_",), "reads vLLM's, which are on the Ray nodes that run its engines"),
)


def whose(names: Collection[str]) -> str | None:
    """One line about a page with families or series of these names; None where they tell nothing."""
    for owner in _OWNERS:
        if any(name.startswith(owner.prefixes) for name in names):
            return f"this is {owner.whose} /metrics; phasewatch {owner.advice}"
    return None

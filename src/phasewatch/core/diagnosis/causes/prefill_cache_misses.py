"""Prompts take long to compute since the prefix cache, though on, no longer has what they share."""

from phasewatch.core.diagnosis.causes._prefill import of_excess, prefill_leads
from phasewatch.core.diagnosis.causes._remedies import STABLE_PREFIXES
from phasewatch.core.diagnosis.causes._row import TTFT, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.histogram import slowest_edges


def _block_too_long(view: WindowView) -> bool:
    """Whether prompts do not fill one block (neither the mean one nor, where that is known, any), and none ever hit."""
    size, prompt = view.pages[-1].get("block_size"), view.numbers.tokens.prompt_mean
    if size is None or prompt is None or prompt >= size or view.numbers.tokens.prefix_hit_ratio != 0:
        return False
    lengths = view.window.histograms.get("prompt_length")
    longest = None if lengths is None else slowest_edges(lengths)
    return longest is None or longest[0] < size


def _blocks_match(view: WindowView) -> bool:
    return not _block_too_long(view)


def _prefill_cache_misses(case: Case) -> Finding | None:
    view, share = case.view, prefill_leads(case)
    hits, best, times = view.numbers.tokens.prefix_hit_ratio, case.background.best_hit_ratio, case.misses_times_more
    if share is None or hits is None or view.prefix_caching_off or not view.prompt_heavy:
        return None
    took, tokens = case.ttft.by_phase["prefill"], view.numbers.tokens
    evidence = known(
        prefill_seconds=took,
        prefill_share_of_ttft=share,
        prefix_hit_ratio=hits,
        prefix_hit_ratio_before=best,
        computed_prompt_tokens_mean=tokens.computed_prompt_mean,
        prompt_tokens_mean=tokens.prompt_mean,
        block_size=view.pages[-1].get("block_size"),
        kv_usage_max=view.window.gauges["kv_usage"].max if "kv_usage" in view.window.gauges else None,
    )
    head = f"Prefill accounts for {seconds(took)} of TTFT ({percent(share)}): "
    if times is not None:
        return Finding(
            of_excess(case, share * (1 - 1 / times)),
            evidence,
            f"{head}{percent(hits)} of the prompt tokens come from the prefix cache, {percent(best)} did before.",
            "a hit ratio as before.",
        )
    if _block_too_long(view):
        return Finding(
            share,
            evidence,
            f"{head}the prefix cache is on, but a block has {number(view.pages[-1]['block_size'])} tokens and a mean"
            f" prompt {number(tokens.prompt_mean)}: nothing can hit.",
            "hits, or prompts longer than a block.",
            at_most="medium",
        )
    return None


# fmt: off
CAUSE = CauseRow(
    verdict="prefill_cache_misses",
    phase="prefill",
    look="The prefix cache's hits on Engine: down, while **Prompt length** has not changed.",
    rule=_prefill_cache_misses,
    families=TTFT,
    needs=("ttft", "prefill", "prompt_tokens", "prefix_hits", "prefix_queries"),
    uses=("queue",),
    remedies=(
        STABLE_PREFIXES,
        Advice("route by prefix (cache-aware routing): requests that share a prefix to the same replica",
            "each replica computes a prefix that another one has", "now", "ITL does not change",
            where="a mean prompt fills a block", fits=_blocks_match),
        Advice("more room for prefixes: --gpu-memory-utilization up, --kv-cache-dtype fp8, or KV offload to CPU memory",
            "shared prefixes that do not fit are evicted before they are used again", "restart",
            "ITL does not change",
            where="a mean prompt fills a block", fits=_blocks_match),
        Advice("a smaller --block-size, where the attention backend and the model allow it",
            "only whole blocks are shared", "restart", "ITL does not change",
            where="a mean prompt does not fill a block", fits=_block_too_long),
    ),
)
# fmt: on

"""The API server: takes requests, tokenises, passes on outputs, and books the metrics as vLLM's front end does."""

from collections.abc import Callable

from tools.simulator.config import FrontEnd as Costs
from tools.simulator.engine import Engine
from tools.simulator.messages import Output, Request, StepResult
from tools.simulator.metrics import Book, Page
from tools.simulator.speed import Speed


class FrontEnd:
    """One API server process: an event loop (accepting, outputs) and a tokeniser thread, each first come first served.

    deliver(request, time): a chunk leaves the server. done(request, time, status, error): its connection ends.
    """

    def __init__(
        self,
        costs: Costs,
        speed: Speed,
        page: Page,
        engines: list[Engine],
        at: Callable[[float, Callable[[float], None]], None],
        deliver: Callable[[Request, float], None],
        done: Callable[[Request, float, int, str | None], None],
    ) -> None:
        self._costs, self._speed, self._page, self._engines = costs, speed, page, engines
        self._at, self._deliver, self._done = at, deliver, done
        self._loop_free = self._tokeniser_free = float("-inf")
        self.alive = True
        self.unanswered = 0  # accepted, no first token yet

    def _on_loop(self, now: float, seconds: float, call: Callable[[float], None]) -> None:
        """Run `call` when the event loop has done all it had before and `seconds` of work for this."""
        self._loop_free = self._speed.finish(max(now, self._loop_free), seconds)
        self._page.cpu_seconds += seconds
        if self._loop_free == now:
            call(now)
        elif self._loop_free != float("inf"):
            self._at(self._loop_free, lambda time: call(time) if self.alive else None)

    def accept(self, request: Request, engine: Engine, now: float, fail_5xx: bool) -> None:
        self._page.open_connections += 1
        # vLLM stamps the arrival when its handler starts, before it tokenises (since 0.17).
        request.arrival = self._speed.finish(max(now, self._loop_free), 0.0)
        self._on_loop(now, self._costs.accept_seconds, lambda time: self._accepted(request, engine, time, fail_5xx))

    def _accepted(self, request: Request, engine: Engine, now: float, fail_5xx: bool) -> None:
        if request.closed:
            return
        limit = engine.flags.max_num_queued_reqs
        if limit is not None and self.unanswered >= limit:
            self._page.web.values["vllm:admission_rejections_total/max_num_queued_reqs"] += 1
            self._close(request, now, 503, "rejected")
        elif fail_5xx:
            self._close(request, now, 500, "internal error")
        else:
            self.unanswered += 1
            seconds = self._costs.tokenise_seconds + self._costs.tokenise_token_seconds * request.prompt
            self._page.cpu_seconds += seconds
            self._tokeniser_free = self._speed.finish(max(now, self._tokeniser_free), seconds)
            if self._tokeniser_free != float("inf"):
                self._at(self._tokeniser_free, lambda time: self._submit(request, engine, time))

    def _submit(self, request: Request, engine: Engine, now: float) -> None:
        if self.alive and not request.closed:
            engine.submit(request, now)

    def leave(self, request: Request, engine: Engine, now: float) -> None:
        """The client has gone: no trace in engine families, a 2xx for the web server, since its stream had begun."""

        def noticed(time: float) -> None:
            if not request.closed:
                if not request.delivered:  # accepted, since the loop is first come first served
                    self.unanswered -= 1
                self._close(request, time, 200, "TimeoutError")
                engine.abort(request, time)

        self._on_loop(now, self._costs.accept_seconds, noticed)

    def outputs(self, result: StepResult, book: Book, with_scheduler: bool) -> None:
        seconds = self._costs.output_seconds * len(result.outputs)
        self._on_loop(result.at, seconds, lambda time: self._record(result, book, with_scheduler, time))

    # --- booking -------------------------------------------------------------------------------------------------

    def _record(self, result: StepResult, book: Book, with_scheduler: bool, now: float) -> None:
        if with_scheduler:
            _book_scheduler(result, book)
        if not result.outputs:
            return
        values, histograms = book.values, book.histograms
        itl = histograms["vllm:inter_token_latency_seconds"]
        at, generated, prompts = result.at, 0, 0
        last_gap, gaps = -1.0, 0
        for output in result.outputs:
            request = output.request
            if request.closed:
                continue
            generated += output.tokens
            if request.delivered:
                gap = at - request.delivered_last
                if gap != last_gap:
                    if gaps:
                        itl.observe(last_gap, gaps)
                    last_gap, gaps = gap, 0
                gaps += 1
            else:
                prompts += _book_first(request, book, now)
                request.delivered_first = at
                self.unanswered -= 1
            request.delivered += output.tokens
            request.delivered_last = at
            if request.unreported_preemptions:
                values["vllm:num_preemptions_total"] += request.unreported_preemptions
                request.unreported_preemptions = 0
            self._deliver(request, now)
            if output.finish:
                _book_finish(output, book, now)
                self._close(request, now, 200, None if output.finish != "error" else "engine error")
        if gaps:
            itl.observe(last_gap, gaps)
        if generated:
            values["vllm:generation_tokens_total"] += generated
            histograms["vllm:iteration_tokens_total"].observe(generated + prompts)

    def _close(self, request: Request, now: float, status: int, error: str | None) -> None:
        request.closed = True
        self._page.open_connections -= 1
        self._page.http_finish(f"{status // 100}xx", now - request.arrival, 180 + 4 * request.prompt)
        self._done(request, now, status, error)


def _book_scheduler(result: StepResult, book: Book) -> None:
    values = book.values
    values["vllm:num_requests_running"] = result.running
    values["vllm:num_requests_waiting"] = result.waiting
    values["vllm:num_requests_waiting_by_reason/capacity"] = result.waiting - result.deferred
    values["vllm:num_requests_waiting_by_reason/deferred"] = result.deferred
    values["vllm:kv_cache_usage_perc"] = result.kv_usage
    values["vllm:prefix_cache_queries_total"] += result.prefix_queries
    values["vllm:prefix_cache_hits_total"] += result.prefix_hits
    values["vllm:external_prefix_cache_queries_total"] += result.external_queries
    values["vllm:external_prefix_cache_hits_total"] += result.external_hits
    values["vllm:prompt_tokens_cached_by_source_total/device"] += result.prefix_hits
    values["vllm:prompt_tokens_cached_by_source_total/p2p"] += result.external_hits
    values["vllm:spec_decode_num_drafts_total"] += result.drafts
    values["vllm:spec_decode_num_draft_tokens_total"] += result.draft_tokens
    values["vllm:spec_decode_num_accepted_tokens_total"] += sum(result.accepted)
    for position, count in enumerate(result.accepted):
        values[f"vllm:spec_decode_num_accepted_tokens_per_pos_total/{position}"] += count
    for stage, count in zip(("waiting_to_start", "in_progress", "completed_waiting"), result.fetches, strict=True):
        values[f"vllm:num_requests_kv_fetch_by_stage/{stage}"] = count
    values["vllm:nixl_num_failed_transfers_total"] += result.failed_transfers
    for seconds, amount in result.transfers:
        book.histograms["vllm:nixl_xfer_time_seconds"].observe(seconds)
        book.histograms["vllm:nixl_post_time_seconds"].observe(seconds / 50)
        book.histograms["vllm:nixl_bytes_transferred"].observe(amount)
        book.histograms["vllm:nixl_num_descriptors"].observe(amount / 65536)


def _book_first(request: Request, book: Book, now: float) -> int:
    """A first token: the prompt is booked whole, at its last chunk. Returns the computed prompt tokens."""
    values = book.values
    book.histograms["vllm:time_to_first_token_seconds"].observe(now - request.arrival)
    computed = request.prompt - request.cached
    values["vllm:prompt_tokens_total"] += request.prompt
    values["vllm:prompt_tokens_cached_total"] += request.cached
    values["vllm:prompt_tokens_by_source_total/local_compute"] += computed
    values["vllm:prompt_tokens_by_source_total/local_cache_hit"] += request.cached - request.external
    values["vllm:prompt_tokens_by_source_total/external_kv_transfer"] += request.external
    return computed


def _book_finish(output: Output, book: Book, now: float) -> None:
    request = output.request
    assert request.queued is not None
    assert request.scheduled is not None
    decode = request.delivered_last - request.delivered_first
    prefill = request.delivered_first - request.scheduled
    book.values[f"vllm:request_success_total/{output.finish}"] += 1
    for name, value in (
        ("e2e_request_latency_seconds", now - request.arrival),
        ("request_queue_time_seconds", request.scheduled - request.queued),
        ("request_prefill_time_seconds", prefill),
        ("request_decode_time_seconds", decode),
        ("request_inference_time_seconds", prefill + decode),
        ("request_time_per_output_token_seconds", decode / (request.delivered - 1) if request.delivered > 1 else 0.0),
        ("request_prompt_tokens", request.prompt),
        ("request_generation_tokens", request.delivered),
        ("request_max_num_generation_tokens", request.delivered),
        ("request_params_max_tokens", request.max_tokens),
        ("request_params_n", 1),
        ("request_num_preemptions", request.preemptions),
        ("request_prefill_kv_computed_tokens", request.prompt - request.cached),
    ):
        book.histograms[f"vllm:{name}"].observe(value)

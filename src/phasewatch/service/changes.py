"""What is worth a log line from one evaluation to the next: changes only, each once."""

from structlog.stdlib import BoundLogger

from phasewatch.core.model import EngineKey, EngineReport, Fleet, TargetReport

_TROUBLE = frozenset({"stale", "down", "no_engine_metrics"})


class Changes:
    """Remembers the last state of every target and engine."""

    def __init__(self, log: BoundLogger) -> None:
        self._log = log
        self._targets: dict[str, str] = {}
        self._engines: dict[EngineKey, tuple[str, str | None]] = {}

    def log(self, fleet: Fleet) -> None:
        for target in fleet.targets:
            self._target(target)
        for engine in fleet.engines:
            self._engine(engine)
        self._targets = {target.target: target.state for target in fleet.targets}
        self._engines = {engine.key: (engine.state, engine.verdict) for engine in fleet.engines}

    def _target(self, report: TargetReport) -> None:
        before = self._targets.get(report.target)
        if before == report.state:
            return
        about = {"target": report.target, "state": report.state, "previous": before}
        if report.state in _TROUBLE:
            self._log.warning("target in trouble", **about, error=report.last_error)
        elif before in _TROUBLE:
            self._log.info("target recovered", **about)
        else:
            self._log.info("target state", **about)

    def _engine(self, report: EngineReport) -> None:
        before = self._engines.get(report.key)
        if before == (report.state, report.verdict):
            return
        about = {**report.key._asdict(), "state": report.state}
        if report.verdict is None:
            self._log.info("engine state", **about, previous=before and before[0])
            return
        write = self._log.info if report.verdict == "healthy" else self._log.warning
        write(
            "verdict", **about, verdict=report.verdict, previous=before and before[1], confidence=report.confidence,
            summary=report.summary,
        )  # fmt: skip

"""What is worth a log line from one evaluation to the next: changes only, each once."""

from structlog.stdlib import BoundLogger

from phasewatch.core.model import TROUBLE, AnomalyKind, EngineKey, EngineReport, Fleet, TargetReport


class Changes:
    """Remembers the last state of every target and engine."""

    def __init__(self, log: BoundLogger) -> None:
        self._log = log
        self._targets: dict[str, str] = {}
        self._engines: dict[EngineKey, tuple[str, str | None]] = {}
        self._events: dict[EngineKey, float] = {}  # when the last one was that is logged
        self._faults: dict[tuple[str | None, ...], str] = {}
        self._odd: dict[str, dict[AnomalyKind, float]] = {}  # when each was last there

    def log(self, fleet: Fleet) -> None:
        for target in fleet.targets:
            self._target(target)
            self._anomalies(target, fleet.at, fleet.window_seconds)
        for engine in fleet.engines:
            self._happened(engine)
            self._engine(engine)
        self._own_faults(fleet)
        self._targets = {target.target: target.state for target in fleet.targets}
        self._odd = {target.target: self._odd[target.target] for target in fleet.targets}
        self._engines = {engine.key: (engine.state, engine.verdict) for engine in fleet.engines}
        self._events = {key: at for key, at in self._events.items() if key in self._engines}

    def _own_faults(self, fleet: Fleet) -> None:
        """Our own mistakes: with the traceback when one begins, and when it is over."""
        reports = [(tuple(one.key), one.key._asdict(), one.fault) for one in fleet.engines]
        rows = [((one.model_name, one.role), {"model_name": one.model_name, "role": one.role}) for one in fleet.models]
        every = [*reports, *((*row, model.fault) for row, model in zip(rows, fleet.models, strict=True))]
        known = {key: fault for key, _, fault in every if fault is not None}
        for key, about, fault in every:
            if fault is not None and key not in self._faults:
                self._log.error(
                    "internal error", **about, error=fault.error, doing=fault.doing, traceback=fault.traceback
                )
            elif fault is None and key in self._faults:
                self._log.info("internal error is over", **about)
        self._faults = {key: fault.error for key, fault in known.items()}

    def _anomalies(self, report: TargetReport, at: float, window: float) -> None:
        """One line when an anomaly begins, one when a whole window went by without it: many come with every third
        scrape or so."""
        seen = self._odd.setdefault(report.target, {})
        for one in report.anomalies:
            if one.present:
                if one.kind not in seen:
                    self._log.warning("anomaly", target=report.target, kind=one.kind, last=one.last)
                seen[one.kind] = at
            elif one.kind in seen and at - seen[one.kind] > window:
                self._log.info("anomaly is over", target=report.target, kind=one.kind, count=one.count)
                del seen[one.kind]

    def _target(self, report: TargetReport) -> None:
        before = self._targets.get(report.target)
        if before == report.state:
            return
        about = {"target": report.target, "state": report.state, "previous": before}
        if report.state in TROUBLE:
            self._log.warning("target in trouble", **about, error=report.last_error)
        elif before in TROUBLE:
            self._log.info("target recovered", **about)
        else:
            why = {} if report.last_error is None else {"error": report.last_error}
            self._log.info("target state", **about, **why)

    def _happened(self, report: EngineReport) -> None:
        last = self._events.get(report.key)
        for event in report.events:
            if last is None or event.at > last:
                about = {"kind": event.kind, "before": event.before, "after": event.after}
                self._log.info("engine event", **report.key._asdict(), **about)
                self._events[report.key] = event.at

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

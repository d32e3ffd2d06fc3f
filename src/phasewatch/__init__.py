"""phasewatch: which phase of a vLLM fleet is slow, why, and what to change.

    targets -> page -> Snapshot -> Window -> {Estimate, Phases} -> Symptom -> Verdict -> Fleet
    Fleet -> /metrics, JSON, page, command line

core/ is pure (no clock, files, sockets, threads, logging); everything else is input and output around it.
"""

__version__ = "0.1.0"

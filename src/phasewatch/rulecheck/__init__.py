"""`phasewatch check-rules`: which Prometheus rules about vLLM or phasewatch can never fire, and why."""

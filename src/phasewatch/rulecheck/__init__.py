"""`phasewatch check-rules`: metrics that a vLLM version does not have, and missed units."""

"""What a run shows of itself: Prometheus metrics, JSON-lines logs, the summary and the report."""

"""The parts of benchmarks/scheduling.py: world, engines, policies, pipeline, and what they are judged by."""

"""The trainer: groups in, weights out.

Invariants: every group is trained in exactly one surviving step; a step's result does not depend on how its samples
are split over ranks and micro-batches; nothing is published before the trainer is level with the ledger.
"""

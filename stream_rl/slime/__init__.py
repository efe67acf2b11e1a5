"""What modules that were written for slime need: its Sample, its example's base class, its way to the engine.

docs/slime.md says what of slime there is and what it means here.
"""

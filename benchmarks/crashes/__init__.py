"""A running pipeline, the deaths it meets, and the account of what became of every acknowledged turn."""

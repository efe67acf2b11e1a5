"""The buffer and its peers, each driven the same way: `contender.py` says how."""

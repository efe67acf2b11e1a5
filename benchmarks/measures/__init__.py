"""What is measured of the buffer and its peers: one module a table."""

"""Everything about SGLang: its HTTP client, several servers as one fleet, the server process, weight publishing."""

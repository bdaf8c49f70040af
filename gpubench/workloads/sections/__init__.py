"""The sections of reports on networks."""

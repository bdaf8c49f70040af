"""Probes that load native libraries. Each runs in a child process of its own: they have hung whole machines."""

"""The collectives, one file each."""

"""The child process that drives one device."""

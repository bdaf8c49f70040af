"""The sections of reports on several GPUs."""

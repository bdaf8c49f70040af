"""Modules that backends share with each other and with the worker: new backends stand beside it."""

"""Modules that backends share with each other and with the worker. The parent process uses none of them."""

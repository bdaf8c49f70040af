raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)

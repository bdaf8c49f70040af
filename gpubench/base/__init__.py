"""The ground that every room stands on: messages, errors, units, text, processes, files, plugins."""

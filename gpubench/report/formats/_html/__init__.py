"""The parts of the one-file page: elements, tables, controls, what is embedded, its style and its script."""

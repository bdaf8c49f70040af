"""Measuring: from a selection of cases to samples in a result file."""

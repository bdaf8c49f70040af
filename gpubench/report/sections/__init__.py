"""One module a noun: its table and its chart, from the analysis to what a reader sees."""

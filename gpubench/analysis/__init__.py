"""From result files to all that reports, comparisons and advice say: pure functions of the files."""

"""Two runs compared, and one run against itself: pairs, tests, verdicts, gates."""

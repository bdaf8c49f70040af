"""Charts as specs with their rows, drawn by the extra `plots`, which nothing imports before a chart is made."""

"""Charts as specs with their rows, drawn by altair and vl_convert, which nothing imports before a chart is made."""

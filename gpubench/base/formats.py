"""Which formats a report has, in their order. `--help` reads them too, and loads no report for that."""

# Format -> the module with its `render`; it is imported only when the format is asked for.
FORMATS = {
    "table": "renderers.text:render_terminal", "plain": "renderers.text:render_plain", "markdown": "renderers.markdown",
    "json": "document",
    "jsonl": "events", "csv": "exporters.csv_rows", "html": "renderers.html",
}  # fmt: skip
# The same for formats that other tools read.
TOOLS = {
    "gha-smaller": "exporters.dashboards:render_smaller", "gha-bigger": "exporters.dashboards:render_bigger",
    "bmf": "exporters.dashboards:render_bmf", "pytest-benchmark": "exporters.benchmarks:render_pytest_benchmark",
    "hyperfine": "exporters.benchmarks:render_hyperfine",
    "google-benchmark": "exporters.benchmarks:render_google_benchmark", "go": "exporters.benchmarks:render_go",
}  # fmt: skip
# What is drawn as a picture, and no text (report/plots.py).
PICTURES = ("svg", "png")
TIME_UNITS = ("auto", "s", "ms", "us", "ns")

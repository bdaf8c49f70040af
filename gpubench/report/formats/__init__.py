"""One module per format, each with `render(analyses, options) -> str`; they do not know each other."""

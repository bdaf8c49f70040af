"""One run on many nodes: an engine starts `gpubench run` on each, and what they send is kept as it comes."""

"""One command on many nodes: an engine starts it on each, and what they send is kept as it comes."""

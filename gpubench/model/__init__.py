"""The nouns of gpubench as frozen types: standard library and msgspec only."""

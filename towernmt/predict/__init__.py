"""A trained tower -> translations: search, the translator, and scores against references."""

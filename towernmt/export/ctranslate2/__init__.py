"""CTranslate2's model format: a Transformer's weights, folded to what its layers have, and vocabularies."""

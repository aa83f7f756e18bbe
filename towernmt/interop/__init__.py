"""Other systems: exports, imports, CTranslate2 as an engine, and packages."""

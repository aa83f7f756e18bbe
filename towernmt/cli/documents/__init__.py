"""`towernmt translate` of documents."""

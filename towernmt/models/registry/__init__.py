"""Which class the name of a model means, of which files it is made, and a run's copy of them."""

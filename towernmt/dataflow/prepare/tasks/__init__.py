"""The passes of a preparation as tasks, each of which any process may do, in any order."""

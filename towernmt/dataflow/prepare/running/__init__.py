"""Who does the tasks of a preparation: processes of one machine, or of a cluster."""

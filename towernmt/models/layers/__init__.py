"""Parts of models: functions over `get_variable`."""

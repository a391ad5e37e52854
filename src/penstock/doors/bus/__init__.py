"""The local bus: integer topics, function handlers, one machine."""

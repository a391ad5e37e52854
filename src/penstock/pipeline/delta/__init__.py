"""Delta tables that follow topics."""

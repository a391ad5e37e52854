"""Commands that start a broker, and that say how it is doing."""

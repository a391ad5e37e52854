"""The Python client: the same names as Broker, against a broker that serves HTTP."""

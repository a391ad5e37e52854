"""A demonstration: devices over MQTT, the broker, Spark, and back over MQTT; `make demo`."""

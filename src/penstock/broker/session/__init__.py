"""MQTT sessions: what they are, how they are stored, resumed and ended, and their wills."""

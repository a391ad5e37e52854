"""The job `replay`: publishes a range of a topic or an archive again."""

"""The console: pages for people, served to browsers, which ask `/v1` for all that they show."""

"""The nouns: records, errors, limits and the clock. Imports nothing of ours."""

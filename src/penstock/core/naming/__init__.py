"""Names and filters: which are legal, what matches, and which topic holds a name."""

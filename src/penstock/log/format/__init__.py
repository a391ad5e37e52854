"""The bytes of a batch: header, columns, marks, footer."""

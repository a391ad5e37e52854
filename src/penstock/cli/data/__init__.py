"""Commands about topics and the records in them."""

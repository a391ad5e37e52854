"""Protocol front ends. They reach storage only through the broker."""

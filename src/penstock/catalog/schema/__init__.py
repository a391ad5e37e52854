"""The tables of the catalog, and how older ones become them."""

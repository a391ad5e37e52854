"""Requests that a node passes on to the node that has to answer them."""

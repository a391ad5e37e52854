"""Figures: what a broker counts and measures, for operators."""

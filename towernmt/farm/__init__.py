"""Supervised workers, as processes of this machine or on a Ray cluster."""

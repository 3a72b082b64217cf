"""Improving covariance conditioning (ECCV 2022)."""

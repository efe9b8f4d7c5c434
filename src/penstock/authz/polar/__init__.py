"""Polar: policies from their source to answers. Pure: docs/authz-polar.md is its reference."""

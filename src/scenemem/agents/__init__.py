"""Agents: networks and scripts that decide where to go next."""

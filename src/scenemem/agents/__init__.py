"""Agents: whoever decides where to go next."""

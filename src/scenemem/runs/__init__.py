"""Runs: presets opened on a data folder, trained, evaluated, compared and shown."""

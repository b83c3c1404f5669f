"""The embedded default world: floor plan -> furniture -> viewpoints -> rendered views -> spoken routes."""

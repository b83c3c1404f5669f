"""Navigation graphs as tensors: one global viewpoint index for all scans."""

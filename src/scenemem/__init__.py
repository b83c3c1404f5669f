"""SceneMem: vision-and-language navigation with a structured scene memory."""

__version__ = "0.1.0"

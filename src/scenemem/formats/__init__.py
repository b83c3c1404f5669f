"""Bytes on disk <-> plain records; every reader raises ``DataError`` with file, record and field."""

"""Bytes on disk <-> plain records; the only package that knows file formats."""

"""A griffe extension: the comment behind an attribute documents it, which is where shapes are written."""

from __future__ import annotations

import ast
from typing import Any

from griffe import Attribute, Docstring, Extension, ObjectNode


class AttributeComments(Extension):
    """Shows ``name: Tensor  # (B, N) what it is`` with what it is."""

    def on_attribute_instance(self, *, node: ast.AST | ObjectNode, attr: Attribute, **_others: Any) -> None:
        """Take the comment of an attribute that has no docstring."""
        if attr.docstring is not None or isinstance(node, ObjectNode) or attr.endlineno is None:
            return
        module = attr.filepath
        if isinstance(module, list):  # a namespace package has no lines
            return
        _, mark, comment = attr.lines_collection[module][attr.endlineno - 1].partition("  # ")
        if mark:
            attr.docstring = Docstring(comment, lineno=attr.endlineno, parent=attr)

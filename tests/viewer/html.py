"""Pages taken apart."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = frozenset({"meta", "img", "input", "link", "col", "br"})


class Html(HTMLParser):
    """The elements of a page, its scripts, and its tables by caption as rows of cells, the head first."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self.feed(page)
        assert self._open == [], "every element is closed"

    @property
    def tags(self) -> list[str]:
        """The names of the elements."""
        return [tag for tag, _ in self.elements]

    def values(self, *names: str) -> list[str]:
        """The values of attributes, wherever they stand."""
        return [
            value for _, found in self.elements for name in names if (value := found.get(name)) is not None
        ]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "script":
            self.scripts.append("")
        elif tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert tag in _VOID or self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.scripts[-1] += data
        elif "caption" in self._open:
            self.tables[data] = self._rows
        elif self._open and {"th", "td"} & {*self._open}:
            self._rows[-1][-1] += data

"""Pages for people: self-contained HTML that needs no network and no build step."""

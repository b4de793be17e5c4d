"""SQL in files, by name: `-- name: x` begins query x, which runs to the next name."""

from __future__ import annotations

from importlib.resources import files


class NamedQueries:
    """The queries of one file as attributes; an unknown name is an AttributeError at once."""

    def __init__(self, package: str, file: str) -> None:
        self._queries: dict[str, str] = {}
        name, lines = "", list[str]()
        for line in files(package).joinpath(file).read_text(encoding="utf-8").splitlines():
            if line.startswith("-- name: "):
                self._keep(name, lines)
                name, lines = line.removeprefix("-- name: ").strip(), []
            elif not line.lstrip().startswith("--"):
                lines.append(line.strip())
        self._keep(name, lines)

    def _keep(self, name: str, lines: list[str]) -> None:
        if name:
            self._queries[name] = " ".join(line for line in lines if line).rstrip(";")

    def __getattr__(self, name: str) -> str:
        try:
            return self._queries[name]
        except KeyError:
            raise AttributeError(f"no query named {name}") from None

    def names(self) -> list[str]:
        """Every name, in the order of the file."""
        return list(self._queries)

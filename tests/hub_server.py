"""A model hub on this machine: the few answers that downloading one model needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

COMMIT = "c0ffee" * 6 + "c0de"


class _Handler(BaseHTTPRequestHandler):
    model_id: ClassVar[str]
    directory: ClassVar[Path]
    gated: ClassVar[bool]
    requested: ClassVar[list[str]]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        api = f"/api/models/{self.model_id}"
        if not path.startswith((api, f"/{self.model_id}/resolve/")):
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [{"rfilename": file.name} for file in self._files()]
            self._send_json({"id": self.model_id, "sha": COMMIT, "siblings": siblings})
        elif path.startswith(f"{api}/tree/"):
            self._send_json(
                [
                    {
                        "type": "file",
                        "path": file.name,
                        "size": file.stat().st_size,
                        "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                    }
                    for file in self._files()
                ]
            )
        elif self.gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        else:
            name = path.rsplit("/", 1)[1]
            if self.command == "GET":
                self.requested.append(name)
            content = (self.directory / name).read_bytes()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
            self._send(200, content, headers)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _files(self) -> list[Path]:
        return sorted(self.directory.iterdir())

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextmanager
def hub_server(model_id: str, directory: Path, gated: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Serve ``directory`` as ``model_id``; gives the address and the list of files downloaded so far."""
    requested: list[str] = []
    facts = {"model_id": model_id, "directory": directory, "gated": gated, "requested": requested}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), facts))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requested
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

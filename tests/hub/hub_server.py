"""A small hub on this machine: it speaks the part of the hub's protocol that is used, and keeps
what it is sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"


class Repository:
    """Commits of a repository, each its files by name; and branches."""

    def __init__(self, is_private: bool = False) -> None:
        self.is_private = is_private
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        self.commit("main", {})

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        """Add files to a branch; return the commit."""
        parent = self.branches.get(branch, "")
        sha1 = hashlib.sha1(f"{parent}{sorted(files)}{len(self.commits)}".encode()).hexdigest()
        self.commits[sha1] = {**self.commits.get(parent, {}), **files}
        self.branches[branch] = sha1
        return sha1


class Hub(ThreadingHTTPServer):
    """The server: repositories by name, objects in LFS, and the requests that were made."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.downloads: list[str] = []

    @property
    def url(self) -> str:
        """Its HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        """Send JSON, or bytes."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, code: str) -> None:
        """Send one of the hub's errors."""
        self.answer({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

    def handle_request(self) -> None:
        """Answer any request."""
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        while self.headers.get("Transfer-Encoding") == "chunked":
            size = int(self.rfile.readline(), 16)
            body += self.rfile.read(size)
            self.rfile.readline()
            if not size:
                break
        self.server.requests.append(f"{self.command} {path}")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in ("", TOKEN):
            return self.refuse(401, "InvalidToken")
        if path.startswith("/objects/"):
            self.server.objects[path.removeprefix("/objects/")] = body
            return self.answer({})
        if self.command == "POST" and token != TOKEN:
            return self.refuse(401, "GatedRepo")
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        match = re.match(r"(/api/models)?/(\w+/[\w-]+?)(\.git)?(/.*)?$", path)
        name, rest = (match[2], match[4] or "") if match else ("", "")
        repository = self.server.repositories.get(name)
        if repository is None or (repository.is_private and token != TOKEN):
            return self.refuse(404 if token else 401, "RepoNotFound")
        return self.answer_about(name, repository, rest.split("/")[1:], body)

    do_GET = do_HEAD = do_POST = do_PUT = handle_request  # noqa: N815

    def create(self, wanted: dict[str, Any]) -> None:
        """Create a repository, unless it is there."""
        name = f"{wanted.get('organization') or 'ann'}/{wanted['name']}"
        is_there = name in self.server.repositories
        if not is_there:
            is_private = wanted.get("private") or wanted.get("visibility") == "private"
            self.server.repositories[name] = Repository(bool(is_private))
        self.answer({"url": f"{self.server.url}/{name}"}, 409 if is_there else 200)

    def answer_about(
        self, name: str, repository: Repository, words: list[str], body: bytes
    ) -> None:
        """Answer a request about one repository."""
        action, *rest = words or [""]
        revision = rest[0] if rest else "main"
        commit = repository.branches.get(revision, revision)
        files = repository.commits.get(commit)
        if action == "info":
            return self.offer_uploads(json.loads(body))
        if action == "branch":
            repository.branches.setdefault(revision, repository.branches["main"])
            return self.answer({})
        if files is None:
            return self.refuse(404, "RevisionNotFound")
        if action in ("", "revision"):
            siblings = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
            return self.answer({"id": name, "sha": commit, "siblings": siblings})
        if action == "tree":
            return self.answer(
                [
                    {"type": "file", "path": file, "size": len(data), "oid": git_hash(data)}
                    for file, data in files.items()
                ]
            )
        if action == "resolve":
            file = "/".join(rest[1:])
            if file not in files:
                return self.refuse(404, "EntryNotFound")
            if self.command == "GET":
                self.server.downloads.append(file)
            etag = f'"{git_hash(files[file])}"'
            return self.answer(files[file], X_Repo_Commit=commit, ETag=etag)
        if action == "preupload":
            wanted = json.loads(body)["files"]
            modes = [upload_mode(file["path"], files) for file in wanted]
            return self.answer({"files": modes})
        assert action == "commit", words
        return self.take_commit(name, repository, revision, body)

    def offer_uploads(self, wanted: dict[str, Any]) -> None:
        """Say where large files are sent."""
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.server.url}/objects/{one['oid']}"}}}
            for one in wanted["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def take_commit(self, name: str, repository: Repository, branch: str, body: bytes) -> None:
        """Keep the files of a commit, if it follows the last one."""
        new: dict[str, bytes] = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                if value.get("parentCommit") not in (None, repository.branches[branch]):
                    return self.refuse(412, "a commit has happened since")
            elif line["key"] == "file":
                new[value["path"]] = base64.b64decode(value["content"])
            else:
                assert line["key"] == "lfsFile", line
                new[value["path"]] = self.server.objects[value["oid"]]
        commit = repository.commit(branch, new)
        url = f"{self.server.url}/{name}/commit/{commit}"
        return self.answer({"success": True, "commitOid": commit, "commitUrl": url})


def upload_mode(name: str, files: dict[str, bytes]) -> dict[str, Any]:
    """Say how a file is sent, and which one of its name is there."""
    is_large = name.endswith(".safetensors")
    mode = {"path": name, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}
    if name in files:
        data = files[name]
        mode["oid"] = hashlib.sha256(data).hexdigest() if is_large else git_hash(data)
    return mode


def git_hash(data: bytes) -> str:
    """Return git's name of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub while the block lasts."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()

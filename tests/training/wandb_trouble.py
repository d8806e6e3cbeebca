"""What W&B can meet, in a process of its own: `python wandb_trouble.py FOLDER TROUBLE` tells in
JSON how it went.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from composer.recipe.sections import WandB
from composer.training import wandb_logger
from composer.training.wandb_logger import WandbLogger

NOBODY = "http://127.0.0.1:9"
RUN = {
    "id": "x",
    "name": "id",
    "displayName": "n",
    "config": "{}",
    "historyLineCount": 0,
    "project": {"id": "y", "name": "p", "entity": {"id": "z", "name": "e"}},
}
ANSWER = {
    "viewer": {"id": "v", "entity": "e", "username": "e", "flags": "{}", "teams": {"edges": []}},
    "model": {"id": "m", "bucket": None, "entity": {"name": "e"}},
    "serverInfo": {"cliVersionInfo": {"max_cli_version": "9.9.9"}, "features": []},
    "upsertBucket": {"bucket": RUN, "inserted": True},
    "QueryType": {"fields": []},
    "MutationType": {"fields": []},
    "__type": {"fields": [], "inputFields": []},
}


class Server(BaseHTTPRequestHandler):
    """As much of W&B as a run needs to begin."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        content = json.dumps({"data": ANSWER}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def unreachable(folder: Path, said: list[str]) -> WandbLogger:
    """Nobody answers when the run begins."""
    log = online(NOBODY, folder, said)
    log.write({"step": 1, "a": 1.0})
    return log


def lost(folder: Path, said: list[str]) -> WandbLogger:
    """The server goes away in the middle."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log = online(f"http://127.0.0.1:{server.server_port}", folder, said)
    log.write({"step": 1, "a": 1.0})
    server.shutdown()
    server.server_close()
    log.write({"step": 2, "a": 1.0})
    return log


def dead(folder: Path, said: list[str]) -> WandbLogger:
    """W&B's own process is killed."""
    log = WandbLogger("offline", None, folder, "n", "id", said.append)
    log.write({"step": 1, "a": 1.0})
    os.kill(child(), signal.SIGKILL)
    os.waitpid(child(), 0)
    for step in (2, 3):
        log.write({"step": step, "a": 1.0})
    return log


def online(address: str, folder: Path, said: list[str]) -> WandbLogger:
    os.environ |= {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": address}
    return WandbLogger("online", WandB(project="p"), folder, "n", "id", said.append)


def child() -> int:
    """The one process that this one has begun."""
    (result,) = (
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if stat.read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    )
    return result


def main(folder: Path, trouble: str) -> None:
    wandb_logger.INIT_TIMEOUT, wandb_logger.FINISH_TIMEOUT = (
        (2.0 if trouble == "unreachable" else 30.0),
        1.0,
    )
    said: list[str] = []
    log = {"unreachable": unreachable, "lost": lost, "dead": dead}[trouble](folder, said)
    mode = log.mode
    log.finish(0)
    sys.stdout.write(json.dumps({"mode": mode, "trouble": log.trouble, "said": said}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

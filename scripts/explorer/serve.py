# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Serve the explorer's page, with models beside it, on 127.0.0.1. `make explore` runs it.

It serves this folder and, under models/, the files of the models' own folders; any static host can do the same.
"""

import argparse
import json
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
PUBLISHED = HERE.parent.parent / "model_cards"


class Handler(SimpleHTTPRequestHandler):
    """Files of this folder, and /models/NAME/FILE of the models."""

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript"}

    def __init__(self, *args, models: dict[str, Path], **kwargs):
        self.models = models
        super().__init__(*args, directory=str(HERE), **kwargs)

    def translate_path(self, path: str) -> str:
        match unquote(urlsplit(path).path).split("/"):
            case ["", "models", name, file] if name in self.models and file not in ("", ".."):
                return str(self.models[name] / file)
        return super().translate_path(path)

    def do_GET(self):
        if urlsplit(self.path).path != "/models.json":
            return super().do_GET()
        body = json.dumps(list(self.models)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self):
        self.send_header("Cache-Control", "no-cache")  # a model that is trained again is another
        super().end_headers()

    def list_directory(self, path):
        self.send_error(404)

    def log_request(self, code="-", size="-"):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", type=Path, metavar="DIR", help="folders; default: the published models")
    parser.add_argument("--port", type=int, default=7860, help="0: any that is free")
    args = parser.parse_args()
    published = [PUBLISHED / name for name in json.loads((HERE / "models.json").read_text(encoding="utf-8"))]
    models = {}
    for folder in args.model or published:
        if not (folder / "config.json").is_file():
            parser.error(f"{folder} is not the folder of a model: it has no config.json")
        name = folder.resolve().name
        models[name if name not in models else f"{name} ({len(models) + 1})"] = folder.resolve()
    with ThreadingHTTPServer(("127.0.0.1", args.port), partial(Handler, models=models)) as server:
        print(f"The explorer runs at http://127.0.0.1:{server.server_address[1]} (stop it with Ctrl+C)", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()

# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A small Hugging Face Hub in memory on 127.0.0.1: what huggingface_hub sends to push and load models without Xet.

As with the real one, large files go to and come from a storage on another host, without a token: nobody guesses the
sha256 in its URLs. Here the other host is the same server, called localhost.
"""

import base64
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

USERS = {"hf_alice": "alice", "hf_bob": "bob"}  # by token
LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".pkl", ".ckpt", ".onnx")
REPO, REVISION, OID = r"(?P<repo>[\w.-]+/[\w.-]+?)", r"(?P<revision>[^/]+)", r"(?P<oid>[0-9a-f]{64})"
ROUTES = []  # (method, pattern of the path, function)


class HubError(Exception):
    """An answer other than 200. The client tells errors apart by the header `X-Error-Code`."""

    def __init__(self, status: int, message: str, code: str = "", **fields: str):
        super().__init__(message)
        self.status, self.fields = status, {"error": message, **fields}
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}


@dataclass(frozen=True)
class File:
    data: bytes
    is_lfs: bool = False

    @property
    def oid(self) -> str:
        """What the client compares files by: the sha256 with LFS, else git's id."""
        if self.is_lfs:
            return sha256(self.data).hexdigest()
        return sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()


class Repository:
    """Commits are whole trees that never change; refs, which are branches and `refs/pr/N`, point to them."""

    def __init__(self, repo_id: str, private: bool):
        self.id, self.owner, self.private = repo_id, repo_id.split("/")[0], private
        self.lfs: dict[str, bytes] = {}  # by sha256, once the client has reported the upload to be complete
        self.commits: dict[str, dict[str, File]] = {}
        self.refs: dict[str, str] = {}
        self.pull_requests: dict[str, tuple[str, str]] = {}  # ref: author, commit of main that it was opened on
        self.commit("main", {".gitattributes": File(b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n")})

    def resolve(self, revision: str) -> str:
        sha = self.refs.get(revision, revision)
        if sha not in self.commits:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha

    def files(self, revision: str = "main") -> dict[str, File]:
        return self.commits[self.resolve(revision)]

    def commit(self, ref: str, files: dict[str, File]) -> str:
        content = [self.refs.get(ref), len(self.commits), {path: file.oid for path, file in files.items()}]
        sha = sha1(json.dumps(content).encode()).hexdigest()
        self.commits[sha] = files
        self.refs[ref] = sha
        return sha


@dataclass
class Call:
    user: str | None
    query: dict[str, list[str]]
    body: bytes

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    def check_user(self, *allowed: str) -> None:
        if self.user is None:
            raise HubError(401, "Invalid username or password.")
        if self.user not in allowed:
            raise HubError(403, "Forbidden: you need write access to this repository")


def route(method: str, pattern: str):
    return lambda function: ROUTES.append((method, re.compile(pattern), function)) or function


class Hub:
    """The endpoints. Each returns a JSON object, or a status, headers and a body."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.storage: dict[str, bytes] = {}  # by sha256
        self.requests: list[tuple[str, int]] = []  # ("METHOD path", status), 0 for a request that was cut off
        self.cut_off: str | None = None  # while it is set, requests that match it are cut off in the middle
        self.lock = threading.Lock()  # requests are carried out one at a time

    def answer(self, method: str, path: str, call: Call):
        for expected, pattern, function in ROUTES:
            if method == expected and (match := pattern.fullmatch(path)):
                values = {name: unquote(value) for name, value in match.groupdict().items() if value is not None}
                if "repo" in values:
                    values["repo"] = self.find_repository(values["repo"], call)
                return function(self, call, **values)
        raise HubError(404, f"This Hub has no {method} {path}")

    def find_repository(self, repo_id: str, call: Call) -> Repository:
        """A private repository is, to others than its owner, as one that does not exist."""
        repo = self.repositories.get(repo_id)
        if repo is None or (repo.private and call.user != repo.owner):
            if call.user is None:
                raise HubError(401, "Invalid username or password.", "RepoNotFound")
            raise HubError(404, "Repository not found", "RepoNotFound")
        return repo

    @route("POST", "/api/repos/create")
    def create_repo(self, call: Call):
        fields = call.json()
        repo_id = f"{fields.get('organization') or call.user}/{fields['name']}"
        call.check_user(repo_id.split("/")[0])
        url = f"{self.url}/{repo_id}"
        if repo_id in self.repositories:  # with exist_ok=True the client takes the URL from this error
            raise HubError(409, "You already created this model repo", url=url)
        # `visibility` is what huggingface_hub 2 sends, `private` what earlier ones did
        private = fields.get("visibility") == "private" or bool(fields.get("private"))
        self.repositories[repo_id] = Repository(repo_id, private)
        return {"id": repo_id, "url": url}

    @route("GET", f"/api/models/{REPO}(/revision/{REVISION})?")
    def model_info(self, call: Call, repo: Repository, revision: str = "main"):
        siblings = [{"rfilename": path} for path in repo.files(revision)]
        return {"id": repo.id, "sha": repo.resolve(revision), "private": repo.private, "siblings": siblings}

    @route("GET", f"/api/models/{REPO}/tree/{REVISION}(/(?P<folder>.+))?")  # always as if recursive=true
    def list_repo_tree(self, call: Call, repo: Repository, revision: str, folder: str = ""):
        prefix = f"{folder}/" if folder else ""
        files = {path: file for path, file in repo.files(revision).items() if path.startswith(prefix)}
        if folder and not files:
            raise HubError(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        return [
            {"type": "file", "path": path, "size": len(file.data), "oid": file.oid} for path, file in files.items()
        ]

    @route("GET", f"/{REPO}/resolve/{REVISION}/(?P<path>.+)")  # HEAD, then GET unless the ETag is in the cache
    def resolve(self, call: Call, repo: Repository, revision: str, path: str):
        headers = {"X-Repo-Commit": repo.resolve(revision)}
        file = repo.files(revision).get(path)
        if file is None:
            return 404, {**headers, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b""
        if not file.is_lfs:
            return 200, {**headers, "ETag": f'"{file.oid}"'}, file.data
        headers |= {"X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": str(len(file.data))}
        return 302, {**headers, "Location": f"{self.storage_url}/storage/{file.oid}"}, b""

    @route("POST", f"/api/models/{REPO}/branch/{REVISION}")
    def create_branch(self, call: Call, repo: Repository, revision: str):
        call.check_user(repo.owner)
        if revision in repo.refs:
            raise HubError(409, "Reference already exists")
        repo.refs[revision] = repo.resolve(call.json().get("startingPoint", "main"))
        return {}

    @route("POST", rf"/api/models/{REPO}/discussions/(?P<number>\d+)/merge")
    def merge_pull_request(self, call: Call, repo: Repository, number: str):
        call.check_user(repo.owner)
        _, base = repo.pull_requests[f"refs/pr/{number}"]
        if base != repo.refs["main"]:
            raise HubError(409, "main has moved since")  # which the real Hub merges too, unless files conflict
        repo.refs["main"] = repo.refs[f"refs/pr/{number}"]
        return {}

    # an upload takes these, in this order; only the last changes what others see

    @route("POST", "/api/validate-yaml")  # the head of README.md
    def validate_yaml(self, call: Call):
        return {"errors": [], "warnings": []}

    @route("POST", f"/api/models/{REPO}/preupload/{REVISION}")  # which files go to LFS
    def preupload(self, call: Call, repo: Repository, revision: str):
        old, answers = repo.files(revision), []
        for file in call.json()["files"]:
            mode = "lfs" if file["path"].endswith(LFS_SUFFIXES) or file["size"] > 10_000_000 else "regular"
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
            if there := old.get(file["path"]):  # the client leaves files with the same oid out of the commit
                answers[-1]["oid"] = there.oid
        return {"files": answers}

    @route("POST", rf"/{REPO}\.git/info/lfs/objects/batch")  # where to send them; nothing for those already there
    def lfs_batch(self, call: Call, repo: Repository):
        call.check_user(*USERS.values())  # who can read a repository can open a pull request
        objects = [{"oid": item["oid"], "size": item["size"]} for item in call.json()["objects"]]
        for item in objects:
            if item["oid"] not in repo.lfs:
                upload = {"href": f"{self.storage_url}/storage/{item['oid']}"}
                item["actions"] = {"upload": upload, "verify": {"href": f"{self.url}/{repo.id}.git/info/lfs/verify"}}
        return {"transfer": "basic", "objects": objects}

    @route("PUT", f"/storage/{OID}")
    def put_object(self, call: Call, oid: str):
        if sha256(call.body).hexdigest() != oid:
            raise HubError(400, "The content is not what the URL was signed for")
        self.storage[oid] = call.body
        return {}

    @route("GET", f"/storage/{OID}")
    def get_object(self, call: Call, oid: str):
        return 200, {}, self.storage[oid]

    @route("POST", rf"/{REPO}\.git/info/lfs/verify")
    def lfs_verify(self, call: Call, repo: Repository):
        call.check_user(*USERS.values())
        oid, size = call.json()["oid"], call.json()["size"]
        if oid not in self.storage or len(self.storage[oid]) != size:
            raise HubError(404, f"The LFS object {oid} of {size} bytes was not uploaded")
        repo.lfs[oid] = self.storage[oid]
        return {}

    @route("POST", f"/api/models/{REPO}/commit/{REVISION}")  # lines of JSON: a header, then each file
    def create_commit(self, call: Call, repo: Repository, revision: str):
        create_pr = "create_pr" in call.query
        author = repo.pull_requests.get(revision, (repo.owner,))[0]
        call.check_user(*(USERS.values() if create_pr else (repo.owner, author)))
        files = dict(repo.files(revision))
        for line in call.body.splitlines():
            operation = json.loads(line)
            key, value = operation["key"], operation["value"]
            if key == "file":
                files[value["path"]] = File(base64.b64decode(value["content"], validate=True))
            elif key == "lfsFile":
                if len(repo.lfs.get(value["oid"], b"")) != value["size"]:
                    raise HubError(400, f"The LFS object {value['oid']} of {value['path']} was not uploaded")
                files[value["path"]] = File(repo.lfs[value["oid"]], is_lfs=True)
            elif key != "header":
                raise HubError(400, f"This Hub has no operation {key}")
        url = f"{self.url}/{repo.id}"
        if not create_pr:
            sha = repo.commit(revision, files)
            return {"commitOid": sha, "commitUrl": f"{url}/commit/{sha}"}
        number = len(repo.pull_requests) + 1
        repo.pull_requests[f"refs/pr/{number}"] = (call.user, repo.refs[revision])
        repo.refs[f"refs/pr/{number}"] = repo.refs[revision]
        sha = repo.commit(f"refs/pr/{number}", files)
        return {"commitOid": sha, "commitUrl": f"{url}/commit/{sha}", "pullRequestUrl": f"{url}/discussions/{number}"}


class Handler(BaseHTTPRequestHandler):
    """Reads a whole request, has the Hub answer it, and sends the answer."""

    protocol_version = "HTTP/1.1"  # connections stay open

    def handle_request(self) -> None:
        hub, request = self.server.hub, f"{self.command} {self.path}"
        length = int(self.headers.get("Content-Length", 0))
        cut_off = hub.cut_off is not None and re.match(hub.cut_off, request)
        body = self.rfile.read(length // 2 if cut_off else length)
        if len(body) < length:  # cut off here or by the client: not carried out
            hub.requests.append((request, 0))
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        with hub.lock:
            try:
                answer = self.find_answer(hub, body)
            except HubError as error:
                answer = error.status, error.headers, json.dumps(error.fields).encode()
        status, headers, content = answer if isinstance(answer, tuple) else (200, {}, json.dumps(answer).encode())
        hub.requests.append((request, status))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def find_answer(self, hub: Hub, body: bytes):
        url, token = urlsplit(self.path), self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in USERS:
            raise HubError(401, "Invalid credentials in Authorization header")
        if token and url.path.startswith("/storage/"):
            raise HubError(400, "The token must not leave the Hub")
        method = "GET" if self.command == "HEAD" else self.command
        return hub.answer(method, url.path, Call(USERS.get(token), parse_qs(url.query), body))

    do_GET = do_HEAD = do_POST = do_PUT = handle_request  # noqa: N815

    def log_message(self, *arguments) -> None:
        """Print nothing."""


@contextmanager
def run_hub() -> Iterator[Hub]:
    """A Hub at `url`, with its storage at `storage_url`, served by threads of this process on a free port."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hub = hub
    hub.url, hub.storage_url = (f"http://{host}:{server.server_port}" for host in ("127.0.0.1", "localhost"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

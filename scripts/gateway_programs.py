"""An edge and a hub as programs, for the scripts that have other people's software talk to them."""

import base64
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A public key whose secret half is in RFC 8032 (section 7.1, test 1): a ticket is for somebody.
HOLDER = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
# No step takes a tenth of this.
PATIENCE = 300


def built(program):
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "debug" / program


class Gateway:
    """Both, each a process of its own, a ticket for a worker, and the certificate to trust for `localhost`. What they log goes
    to `log`."""

    def __init__(self, folder, log, *edge_flags):
        folder.mkdir()
        self.folder, self.log, self.edge_flags, self.running = folder, log, edge_flags, []
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("KVASIR_")}
        key = folder / "hub.key"
        key.touch(mode=0o600)
        key.write_text(f"kvasir-secret-v1 {base64.b64encode(os.urandom(32)).decode()}\n")
        self.run("edge-key", "edge.key")
        self.run("certificate", "--name", "localhost", "--out", "tls")
        self.ticket = self.run("ticket", "--role", "worker", "--network", "atlas", "--holder", HOLDER, "--wallet", "ab" * 32,
                               "--plugin", "cd" * 32, "--hub-key", "hub.key", "--edge-key", "edge.key").strip()
        self.authority = folder / "tls/ca.pem"

    def run(self, *arguments):
        return subprocess.run([built("kvasir-gateway"), *arguments], cwd=self.folder, env=self.environment, check=True,
                              stdout=subprocess.PIPE, stderr=self.log, text=True, timeout=PATIENCE).stdout

    def start(self, *arguments):
        common = ["--listen", "127.0.0.1:0", "--network", "atlas", "--edge-key", "edge.key"]
        process = subprocess.Popen([built("kvasir-gateway"), "--json", *arguments, *common], cwd=self.folder,
                                   env=self.environment, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.running.append(process)
        return json.loads(process.stdout.readline())["listening"]

    def __enter__(self):
        # No ledger is there: a worker would wait, and the hub says so in its log.
        hub = self.start("hub", "--hub-key", "hub.key", "--ledger", "http://127.0.0.1:1")
        self.edge = self.start("edge", "--hub", hub, "--certificate", "tls/server.pem", "--certificate-key", "tls/server.key",
                               *self.edge_flags)
        self.url = f"wss://localhost:{self.edge.rsplit(':', 1)[1]}/v1/worker"
        return self

    def __exit__(self, *_):
        for process in self.running:
            process.kill()
            process.wait()

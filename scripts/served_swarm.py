"""`kvasir serve` for the scripts that look at it from outside: alone on this machine, or over a small swarm of its own on loopback."""

import contextlib
import json
import pathlib
import urllib.request

from swarm_network import READY_WITHIN, WORKER_WITHIN, Network, Server, report
from wide_link import ROOT, TARGET

ATLAS = ROOT / "models/atlas/atlas-q4_k_m.gguf"


@contextlib.contextmanager
def service(folder, model=ATLAS):
    """A service in which every expert is computed by itself, while it is entered; gives what it said when it listened."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    home = [TARGET / "kvasir", "--json", "--home", folder]
    report([*home, "setup"])
    server = Server("serve", [*home, "serve", "--listen", "127.0.0.1:0", "--model", model], folder)
    try:
        yield server.object(READY_WITHIN)
    finally:
        server.stop()


@contextlib.contextmanager
def service_over_workers(folder, workers):
    """A service on atlas whose experts so many workers hold, whole layers each; gives what it said, and the network."""
    with Network(folder) as network:
        for _ in range(workers):
            network.start_worker("--model", ATLAS, "--threads", 1)
        words = network.kvasir("serve", "--listen", "127.0.0.1:0", "--model", ATLAS, "--measure-local", *network.backbone(),
                               "--workers", workers, "--remote-layers", "all")
        server = Server("serve", words, network.folder / "logs")
        try:
            yield server.object(WORKER_WITHIN), network
        finally:
            server.stop()


def post(url, body):
    """Posts JSON; gives the JSON of the answer."""
    asked = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"content-type": "application/json"})
    return json.load(urllib.request.urlopen(asked, timeout=WORKER_WITHIN))

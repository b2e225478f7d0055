"""Ledger, hub, edge and workers for the scripts that need a whole swarm: each a process of its own, driven through the command
lines that people use, with keys and a certificate made anew in a folder. On loopback, or with the workers beyond a link."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from wide_link import NEAR, ROOT, TARGET, Failed

NETWORK = "fabric.kvasir.example"
# 1,000 KVR: 142 GB of calls and results.
FUND_NANOKVR = 10**12
READY_WITHIN, WORKER_WITHIN, STOP_WITHIN = 60, 300, 20
# Whatever runs to its end is through in a fraction of it.
REPORT_WITHIN = 3600
LOG_TAIL = 2000
# None of the caller's own settings, but for what is said and how sockets behave.
KEPT = ("KVASIR_LOG", "KVASIR_TCP_CONGESTION")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("KVASIR_") or name in KEPT}


def end_in_order():
    """A signal that ends this script ends what it started: as ctrl-C does, through every `finally`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def build(*examples):
    """The programs of this checkout, and these examples."""
    words = [word for example in examples for word in ("--example", example)]
    subprocess.run(["cargo", "build", "--quiet", "--locked", "--workspace", "--bins", *words], cwd=ROOT, check=True)


def report(command, **more):
    """Runs a command of ours to its end; gives the object that it prints."""
    more = {"timeout": REPORT_WITHIN} | more
    done = subprocess.run([str(word) for word in command], env=ENVIRONMENT, capture_output=True, text=True, **more)
    if done.returncode:
        raise Failed(f"{' '.join(str(word) for word in command)} failed ({done.returncode}):\n{done.stderr[-LOG_TAIL:]}")
    return json.loads(done.stdout)


class Server:
    """A program that runs until it is stopped, and says what happens as one JSON object a line. It says so into a file: a worker
    has a line for every call, and a reader of them would take its share of the machine that is measured."""

    def __init__(self, name, command, logs):
        self.name, self.log = name, pathlib.Path(logs) / f"{name}.log"
        events = self.log.with_suffix(".events")
        with open(events, "w") as said, open(self.log, "w") as errors:
            self.process = subprocess.Popen([str(word) for word in command], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                                            stdout=said, stderr=errors)
        self.events, self.line = open(events), ""

    def said(self):
        return self.log.read_text(errors="replace")[-LOG_TAIL:]

    def object(self, within, wanted=lambda value: True):
        """The next object that is wanted."""
        until = time.monotonic() + within
        while True:
            # Looked at first: what it said before it ended is read all the same.
            ended = self.process.poll()
            self.line += self.events.readline()
            if self.line.endswith("\n"):
                value, self.line = json.loads(self.line), ""
                if wanted(value):
                    return value
            elif ended is not None:
                raise Failed(f"{self.name} ended ({ended}):\n{self.said()}")
            elif time.monotonic() > until:
                raise Failed(f"{self.name} said nothing of it within {within} s:\n{self.said()}")
            else:
                time.sleep(0.02)

    def event(self, name, within):
        return self.object(within, lambda value: value.get("event") == name)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self):
        # Nothing to one that has ended.
        self.process.kill()
        self.process.wait()
        self.events.close()


class Network:
    """The network, while it is entered. `link`: the workers are beyond it; without one all is on loopback."""

    def __init__(self, folder, link=None):
        self.folder = pathlib.Path(folder)
        self.near, self.far = (link.near, link.far) if link else ([], [])
        self.address, self.name = (NEAR, NEAR) if link else ("127.0.0.1", "localhost")
        self.servers, self.workers = [], []

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def kvasir(self, *words, program=None):
        return [*(program or [TARGET / "kvasir"]), "--json", "--home", self.folder, *words]

    def gateway(self, *words):
        return [*self.near, TARGET / "kvasir-gateway", "--json", *words]

    def ledger(self, *words):
        return [*self.near, TARGET / "kvasir-ledger", "--json", *words]

    def key(self, name):
        return self.folder / "keys" / f"{name}.key"

    def new_key(self, name):
        """A new key: its public half, and the number of its wallet."""
        made = report(self.kvasir("key", "new", self.key(name)))
        return made["public"], made["wallet"]

    def start(self):
        for name in ("keys", "logs"):
            (self.folder / name).mkdir(parents=True)
        self.publisher = report(self.kvasir("setup"))["publisher"]
        public = {name: self.new_key(name)[0] for name in ("hub", "treasury", "settler", "backbone")}
        report(self.gateway("edge-key", self.key("edge")))
        names = dict.fromkeys([self.name, "localhost"])
        certificate = [word for name in names for word in ("--name", name)]
        report(self.gateway("certificate", *certificate, "--out", self.folder / "tls"))

        ledger = self.folder / "ledger"
        report(self.ledger("init", ledger, "--network", NETWORK, "--treasury", public["treasury"], "--hub", public["hub"],
                           "--settler", public["settler"]))
        at = self.serve("ledger", self.ledger("serve", "--listen", "127.0.0.1:0", "--config", ledger / "ledger.toml"))
        self.ledger_url = f"http://{at}"
        of_it = ["--network", NETWORK, "--ledger", self.ledger_url]
        treasury = ["--treasury-key", self.key("treasury")]
        report(self.ledger("price", *of_it, *treasury))
        report(self.ledger("fund", *of_it, *treasury, "--account", public["backbone"], "--nanokvr", str(FUND_NANOKVR)))

        self.hub = self.serve("hub", self.gateway(
            "hub", "--listen", "127.0.0.1:0", *of_it, "--hub-key", self.key("hub"), "--edge-key", self.key("edge"),
            "--spool", self.folder / "spool"))
        self.edge = self.serve("edge", self.gateway(
            "edge", "--listen", f"{self.address}:0", "--network", NETWORK, "--hub", self.hub, "--edge-key", self.key("edge"),
            "--certificate", self.folder / "tls/server.pem", "--certificate-key", self.folder / "tls/server.key"))
        self.ticket("backbone", "backbone", public["backbone"])

    def serve(self, name, command):
        """Starts a server of ours; gives where it listens."""
        server = Server(name, command, self.folder / "logs")
        self.servers.append(server)
        return server.object(READY_WITHIN)["listening"]

    def ticket(self, name, role, holder, *more):
        ticket = report(self.gateway(
            "ticket", "--role", role, "--network", NETWORK, "--expires", "1d", "--publisher", self.publisher, "--holder", holder,
            "--hub-key", self.key("hub"), "--edge-key", self.key("edge"), *more))["ticket"]
        (self.folder / f"{name}.ticket").write_text(ticket + "\n")

    def start_worker(self, *more, program=None, port=None):
        """One more worker, proven and connected; `port` of what stands in front of the edge instead of the edge's."""
        name = f"worker-{len(self.workers)}"
        wallet = self.new_key(f"wallet-of-{name}")[1]
        public = self.new_key(name)[0]
        report(self.ledger("delegate", "--network", NETWORK, "--ledger", self.ledger_url, "--wallet-key",
                           self.key(f"wallet-of-{name}"), "--worker", public))
        self.ticket(name, "worker", public, "--wallet", wallet)
        port = port or self.edge.rsplit(":", 1)[1]
        words = self.kvasir(
            "worker", "--gateway", f"wss://{self.name}:{port}", "--ticket", self.folder / f"{name}.ticket", "--key",
            self.key(name), "--ca", self.folder / "tls/ca.pem", "--receipts", self.folder / f"{name}-receipts", *more,
            program=program)
        worker = Server(name, [*self.far, *words], self.folder / "logs")
        self.workers.append(worker)
        worker.event("proven", WORKER_WITHIN)
        worker.event("connected", WORKER_WITHIN)
        return worker

    def backbone(self):
        """What a backbone is told of the hub."""
        return ["--hub", f"ws://{self.hub}", "--ticket", self.folder / "backbone.ticket", "--key", self.key("backbone")]

    def stop(self):
        servers = [*self.workers, *reversed(self.servers)]
        self.workers, self.servers = [], []
        try:
            for server in servers:
                server.stop()
        finally:
            # Also where somebody does not want to wait for that.
            for server in servers:
                server.kill()

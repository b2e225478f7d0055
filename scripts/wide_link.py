"""A wide-area link between two fresh network namespaces for the scripts that need one: gateway/examples/wan-link, as in
scripts/bench-wan, without a limit of its rate. `near` has 10.99.0.1, `far` 10.99.0.2; nothing else is in either."""

import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
NEAR, FAR = "10.99.0.1", "10.99.0.2"
QUEUE_KIB = 256
# Bytes of a packet, as on most of the internet.
MTU = 1500
# Echoes by which the round trip is measured, and seconds for all of them: those over 100 ms take 5.
ECHOES, ECHOES_WITHIN = 50, 60

ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7007))
print("up", flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(64):
    peer.sendall(data)
"""
ASK = """
import json, socket, sys, time
peer = socket.create_connection((sys.argv[1], 7007))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(int(sys.argv[2])):
    begun, left = time.perf_counter(), 64
    peer.sendall(b"x" * left)
    while left:
        left -= len(peer.recv(left))
    times.append(1e3 * (time.perf_counter() - begun))
print(json.dumps(times))
"""

# In ms: the shortest echo is the round trip as it is, whatever else the machine does; the one in the middle is what most had.
Echoes = collections.namedtuple("Echoes", "shortest middle")


class Failed(Exception):
    """A program that did not do what it should, with the end of what it said."""


def lacking():
    """Why there can be no link here; nothing where there can."""
    if os.geteuid():
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "ip is missing: install the package iproute2"
    if not pathlib.Path("/dev/net/tun").is_char_device():
        return "this kernel has no /dev/net/tun"
    return None


def ip(*words):
    return subprocess.run(["ip", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


class Link:
    """The link, while it is entered. Nothing of it is left afterwards."""

    def __init__(self, round_trip_ms, mtu=MTU):
        self.round_trip_ms, self.mtu = round_trip_ms, mtu
        self.spaces = [f"kvf-{part}-{os.getpid()}" for part in ("near", "far", "middle")]
        # Before a command: what runs it there, as the same process.
        self.near, self.far, self.middle = (["ip", "netns", "exec", space] for space in self.spaces)
        self.forwarder = None

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    def up(self):
        near, far, middle = self.spaces
        for space in self.spaces:
            subprocess.run(["ip", "netns", "add", space], check=True)
            ip("-n", space, "link", "set", "lo", "up")
        words = ["tun-a", "tun-b", str(self.round_trip_ms / 2), "0", str(QUEUE_KIB), "0"]
        self.forwarder = subprocess.Popen([*self.middle, TARGET / "examples/wan-link", *words], stdout=subprocess.DEVNULL)
        until = time.monotonic() + 10
        while not ip("-n", middle, "link", "show", "tun-b"):
            if time.monotonic() > until or self.forwarder.poll() is not None:
                raise Failed("the link did not come up")
            time.sleep(0.1)
        for device, space, address in [("tun-a", near, NEAR), ("tun-b", far, FAR)]:
            for words in (["-n", middle, "link", "set", device, "netns", space],
                          ["-n", space, "addr", "add", f"{address}/24", "dev", device],
                          ["-n", space, "link", "set", device, "up", "mtu", str(self.mtu)]):
                if not ip(*words):
                    raise Failed(f"ip {' '.join(words)} failed")
        # As docs/gateway.md recommends.
        for prefix in (self.near, self.far):
            setting = "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"
            subprocess.run([*prefix, "sh", "-c", setting], check=True)

    def down(self):
        if self.forwarder:
            self.forwarder.kill()
            self.forwarder.wait()
            self.forwarder = None
        for space in self.spaces:
            ip("netns", "del", space)

    def measured_round_trip(self):
        """Echoes of 64 bytes over plain TCP, one after the other."""
        echo = subprocess.Popen([*self.far, sys.executable, "-c", ECHO, FAR], stdout=subprocess.PIPE, text=True)
        try:
            echo.stdout.readline()
            asked = subprocess.run([*self.near, sys.executable, "-c", ASK, FAR, str(ECHOES)], check=True, stdout=subprocess.PIPE,
                                   text=True, timeout=ECHOES_WITHIN)
            times = sorted(json.loads(asked.stdout))
            return Echoes(times[0], times[len(times) // 2])
        finally:
            echo.kill()
            echo.wait()
            echo.stdout.close()

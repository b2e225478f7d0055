"""nginx and HAProxy for the scripts that put them beside or in front of the edge. Where one is not installed, Debian's packages
are fetched and unpacked into a temporary folder: nothing is installed, no service is started."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

PACKAGES = {
    "nginx": ["nginx", "nginx-common", "libnginx-mod-stream"],
    "haproxy": ["haproxy", "liblua5.3-0", "libopentracing1", "libopentracing-c-wrapper0"],
}


def free_ports(count):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def provide(name, work):
    """The program, its environment, and where nginx has its modules; nothing where it cannot be had."""
    environment = dict(os.environ)
    path = os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin"
    program = shutil.which(name, path=path)
    modules = pathlib.Path("/usr/lib/nginx/modules")
    if program and (name != "nginx" or (modules / "ngx_stream_module.so").exists()):
        return program, environment, modules
    if not shutil.which("apt-get"):
        return None
    print(f"fetching {name} from Debian", file=sys.stderr)
    folder = work / name
    folder.mkdir()
    # As root throughout: behind some resolvers and proxies apt's own user reaches no archive.
    apt = ["apt-get", "-o", "APT::Sandbox::User=root"]
    fetch = lambda: subprocess.run([*apt, "download", "-q", *PACKAGES[name]], cwd=folder, stdout=subprocess.DEVNULL)
    if fetch().returncode:
        # A fresh machine has no lists of packages, or old ones.
        subprocess.run([*apt, "update", "-qq"], stdout=subprocess.DEVNULL)
        if fetch().returncode:
            return None
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    environment["LD_LIBRARY_PATH"] = ":".join(str(one) for one in folder.glob("usr/lib/*-linux-*"))
    return str(folder / "usr/sbin" / name), environment, folder / "usr/lib/nginx/modules"


def start(name, provided, file, log, errors, prefix=()):
    """Starts one with its configuration, in the foreground, as one process; `prefix` goes before its command."""
    program, environment, _ = provided
    command = [program, "-c", file, "-e", log] if name == "nginx" else [program, "-db", "-f", file]
    with open(errors, "w") as errors:
        return subprocess.Popen([*prefix, *command], env=environment, stdout=subprocess.DEVNULL, stderr=errors)


def listening(port, process):
    # Starting takes milliseconds.
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        except OSError:
            time.sleep(0.05)
    return False

"""One cell after the other for scripts/bench-fabric and scripts/bench-fabric-rpc: streams written with experts here and with
experts on workers beyond a link, by host/operate/examples/fabric-streams; and what came of it as figures and as tables."""

import json
import os
import pathlib
import subprocess
import time

from debian_proxies import start
from swarm_network import ENVIRONMENT, LOG_TAIL, Failed
from wide_link import NEAR, TARGET

NGINX_PORT = 7443
NGINX = """
daemon off;
master_process off;
pid {work}/nginx.pid;
error_log {work}/nginx.log;
events {{ worker_connections 100; }}
http {{
  access_log off;
  client_body_temp_path {work}/body;
  proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi;
  scgi_temp_path {work}/scgi;
  server {{
    listen {address}:{port} ssl;
    ssl_certificate {tls}/server.pem;
    ssl_certificate_key {tls}/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    location / {{
      proxy_pass https://{edge};
      proxy_ssl_trusted_certificate {tls}/ca.pem;
      proxy_ssl_verify on;
      proxy_ssl_name localhost;
      proxy_ssl_server_name on;
      proxy_ssl_protocols TLSv1.3;
      proxy_http_version 1.1;
      proxy_set_header Host $host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection "upgrade";
    }}
  }}
}}
"""


def machine():
    """As `kvasir bench` says it."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), os.uname().machine)
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def nginx_before(network, provided, work):
    """nginx where the edge is, ending TLS and passing the upgrade on over TLS of its own. Gives the process and its port."""
    work.mkdir()
    file = work / "nginx.conf"
    file.write_text(NGINX.format(work=work, tls=network.folder / "tls", address=NEAR, port=NGINX_PORT, edge=network.edge))
    process = start("nginx", provided, file, work / "nginx.log", work / "nginx.err", network.near)
    until = time.monotonic() + 30
    # Written once it listens.
    while not (work / "nginx.pid").exists():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            process.wait()
            raise Failed("nginx did not start:\n" + (work / "nginx.err").read_text()[-LOG_TAIL:])
        time.sleep(0.05)
    return process, NGINX_PORT


def written(network, model, streams, remote_layers, workers, asked, *more):
    """What fabric-streams says, event by event. `asked`: tokens, seconds, rounds, threads, memory, verify of the command line."""
    words = ["--home", network.folder, "--model", model, "--streams", ",".join(map(str, streams)), "--prompt", 16,
             "--tokens", asked.tokens, "--seconds", asked.seconds, "--rounds", asked.rounds, "--threads", asked.threads]
    words += network.backbone() + ["--workers", workers, "--remote-layers", remote_layers, "--verify", asked.verify]
    words += ["--memory", asked.memory] if asked.memory else []
    log = network.folder / "logs/streams.log"
    with open(log, "w") as errors:
        done = subprocess.run([str(word) for word in [*network.near, TARGET / "examples/fabric-streams", *words, *more]],
                              env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors, text=True)
    if done.returncode:
        raise Failed(f"fabric-streams failed ({done.returncode}):\n{log.read_text()[-LOG_TAIL:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def cells(events, model, round_trip_ms, link_ms, alone=None):
    """A cell for each number of streams. `alone`: tokens/s of one stream here, where it was measured elsewhere in this run."""
    told = [event for event in events if event["event"] == "streams"]
    alone = next((event["local"]["tokens_per_second"] for event in told if event["streams"] == 1), alone)
    found = []
    for event in told:
        here, there = event["local"], event["remote"]
        local, rate = here["tokens_per_second"], there["tokens_per_second"]
        # One pass is one of one stream: with all of them in it, the first part would never be the smaller one.
        hidden = event["streams"] / (event["remote_layers"] * link_ms / 1e3 + 1 / alone)
        ideal = min(local, hidden)
        sums = there["counters"]
        found.append({
            "model": model, "remote_layers": event["remote_layers"], "layers": event["layers"],
            "round_trip_ms": float(round_trip_ms), "streams": event["streams"], "workers": event["workers"],
            "tokens_per_second": rate, "local_tokens_per_second": local, "waiting_share": there["waiting_share"],
            "rows_per_round_trip": there["rows_per_round_trip"], "link_round_trip_ms": link_ms,
            "ideal_tokens_per_second": ideal, "share_of_ideal": rate / ideal, "overhead": 1 - rate / local,
            "computing_share": there["computing_share"], "waves": there["waves"], "threads": event["threads"],
            "rows_per_pass": there["rows_per_pass"], "compute_per_pass_ms": there["compute_per_pass_ms"],
            "wait_per_pass_ms": there["wait_per_pass_ms"], "local_computing_share": here["computing_share"],
            "hedges": sums["hedges"], "failovers": sums["failovers"], "checked": sums["checked"], "answers": sums["answers"],
            "runs": there["runs"], "local_runs": here["runs"],
        })
    return found


def figure(name, value, unit, aim=None, better="higher", note=""):
    """As every benchmark says it."""
    met = None if aim is None else (value >= aim if better == "higher" else value <= aim)
    return {"name": name, "value": round(value, 4), "unit": unit, "aim": aim, "better": better, "met": met, "note": note}


def table(title, rows):
    """Lines of a table of cells."""
    lines = [f"{title}; the link's round trip is {rows[0]['link_round_trip_ms']:.2f} ms", "",
             "| remote layers | streams | tokens/s | local | of local | ideal | of ideal | overhead | rows a round trip | waves | "
             "computing | waiting | asked again, computed here |", "| --- " * 13 + "|"]
    for cell in rows:
        layers = f"{cell['remote_layers']} of {cell['layers']}"
        lines.append(
            f"| {layers} | {cell['streams']} | {cell['tokens_per_second']:.1f} | {cell['local_tokens_per_second']:.1f} | "
            f"{cell['tokens_per_second'] / cell['local_tokens_per_second']:.3f} | {cell['ideal_tokens_per_second']:.1f} | "
            f"{cell['share_of_ideal']:.3f} | {100 * cell['overhead']:.1f} % | {cell['rows_per_round_trip']:.1f} | {cell['waves']} | "
            f"{100 * cell['computing_share']:.0f} % | {100 * cell['waiting_share']:.0f} % | "
            f"{cell['hedges']:.0f}, {cell['failovers']:.0f} |")
    return "\n".join(lines) + "\n"


def verdicts(measured):
    """Lines of the figures, those with an aim first."""
    lines = []
    for one in sorted(measured, key=lambda one: one["aim"] is None):
        word = {True: "met ", False: "MISS", None: "    "}[one["met"]]
        aim = "" if one["aim"] is None else f", aim {one['aim']:g}"
        lines.append(f"  {word} {one['name']}: {one['value']:g} {one['unit']}{aim}" + (f"  {one['note']}" if one["note"] else ""))
    return "\n".join(lines)

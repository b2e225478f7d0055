"""One cell after the other for scripts/bench-fabric and scripts/bench-fabric-rpc: streams written with experts here and with
experts on workers beyond a link, by host/operate/examples/fabric-streams; and what came of it as figures and as tables."""

import json
import os
import pathlib
import select
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


def end(process, within):
    """Ends a program, in order if it can."""
    process.terminate()
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def written(network, model, streams, remote_layers, workers, asked, limit, *more):
    """What fabric-streams says, event by event, as it says it. `asked`: tokens, seconds, rounds, threads, memory, verify of the
    command line; `limit`: seconds for which it may say nothing."""
    words = ["--home", network.folder, "--model", model, "--streams", ",".join(map(str, streams)), "--prompt", 16,
             "--tokens", asked.tokens, "--seconds", asked.seconds, "--rounds", asked.rounds, "--threads", asked.threads]
    words += network.backbone() + ["--workers", workers, "--remote-layers", remote_layers, "--verify", asked.verify]
    words += ["--memory", asked.memory] if asked.memory else []
    log = network.folder / "logs/streams.log"
    said = lambda: log.read_text(errors="replace")[-LOG_TAIL:]
    with open(log, "w") as errors:
        process = subprocess.Popen([str(word) for word in [*network.near, TARGET / "examples/fabric-streams", *words, *more]],
                                   env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors)
    try:
        for line in lines(process.stdout, limit):
            if line is None:
                raise Failed(f"fabric-streams has said nothing for {limit:.0f} s:\n{said()}")
            yield json.loads(line)
        if process.wait(limit):
            raise Failed(f"fabric-streams failed ({process.returncode}):\n{said()}")
    finally:
        # Nothing to one that has ended.
        process.kill()
        process.wait()
        process.stdout.close()


def lines(pipe, limit):
    """What a program says, line by line; nothing, and no more, where nothing came for `limit` seconds. Waiting costs none of the
    machine that is measured."""
    rest = b""
    while select.select([pipe], [], [], limit)[0]:
        data = os.read(pipe.fileno(), 1 << 16)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        yield from whole
    yield None


def cells(events, model, round_trip_ms, alone=None):
    """A cell for each number of streams; `link` of an event is what was measured of the link. `alone`: tokens/s of one stream here,
    where it was measured elsewhere in this run; without any there is no ideal."""
    alone = next((event["local"]["tokens_per_second"] for event in events if event["streams"] == 1), alone)
    found = []
    for event in events:
        here, there, link_ms = event["local"], event["remote"], event["link"]["shortest_ms"]
        local, rate = here["tokens_per_second"], there["tokens_per_second"]
        # One pass is one of one stream: with all of them in it, the first part would never be the smaller one.
        ideal = alone and min(local, event["streams"] / (event["remote_layers"] * link_ms / 1e3 + 1 / alone))
        sums = there["counters"]
        found.append({
            "model": model, "remote_layers": event["remote_layers"], "layers": event["layers"],
            "round_trip_ms": float(round_trip_ms), "streams": event["streams"], "workers": event["workers"],
            "tokens_per_second": rate, "local_tokens_per_second": local, "waiting_share": there["waiting_share"],
            "rows_per_round_trip": there["rows_per_round_trip"], "link_round_trip_ms": link_ms,
            "link_round_trip_median_ms": event["link"]["median_ms"],
            "window_tokens_per_second": window_rate(there), "local_window_tokens_per_second": window_rate(here),
            "ideal_tokens_per_second": ideal, "share_of_ideal": ideal and rate / ideal, "overhead": 1 - rate / local,
            "computing_share": there["computing_share"], "waves": there["waves"], "threads": event["threads"],
            "rows_per_pass": there["rows_per_pass"], "compute_per_pass_ms": there["compute_per_pass_ms"],
            "wait_per_pass_ms": there["wait_per_pass_ms"], "local_computing_share": here["computing_share"],
            "hedges": sums["hedges"], "failovers": sums["failovers"], "checked": sums["checked"], "answers": sums["answers"],
            "runs": there["runs"], "local_runs": here["runs"],
        })
    return found


def link_figures(echoes):
    """What events and files say of a link."""
    return {"shortest_ms": echoes.shortest, "median_ms": echoes.middle}


def window_rate(side):
    """Rows of passes a second while all streams were within what is measured of them, where each row is a token: the same rate
    counted another way, which does not profit from streams that are ahead of others or behind them."""
    sums = side["counters"]
    return sums["rows"] / sums["seconds"] if sums["seconds"] > 0 else None


def figure(name, value, unit, aim=None, better="higher", note=""):
    """As every benchmark says it."""
    met = None if aim is None else (value >= aim if better == "higher" else value <= aim)
    return {"name": name, "value": round(value, 4), "unit": unit, "aim": aim, "better": better, "met": met, "note": note}


def table(title, rows):
    """Lines of a table of cells."""
    heads = ["remote layers", "streams", "tokens/s", "in the common time", "local", "in its common time", "of local", "ideal",
             "of ideal", "overhead", "rows a round trip", "waves", "computing", "waiting", "asked again, computed here"]
    lines = [f"{title}; the link's round trip is {round_trip(rows)}", "", f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for cell in rows:
        lines.append("| " + " | ".join([
            f"{cell['remote_layers']} of {cell['layers']}", str(cell["streams"]), f"{cell['tokens_per_second']:.1f}",
            number(cell["window_tokens_per_second"]), f"{cell['local_tokens_per_second']:.1f}",
            number(cell["local_window_tokens_per_second"]),
            f"{cell['tokens_per_second'] / cell['local_tokens_per_second']:.3f}", number(cell["ideal_tokens_per_second"]),
            number(cell["share_of_ideal"], 3), f"{100 * cell['overhead']:.1f} %", f"{cell['rows_per_round_trip']:.1f}",
            str(cell["waves"]), f"{100 * cell['computing_share']:.0f} %", f"{100 * cell['waiting_share']:.0f} %",
            f"{cell['hedges']:.0f}, {cell['failovers']:.0f}"]) + " |")
    return "\n".join(lines) + "\n"


def number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def round_trip(rows):
    """The link of these cells in words: it was measured each time that it was made."""
    def of(name):
        least, most = (f"{pick(cell[name] for cell in rows):.2f}" for pick in (min, max))
        return least if least == most else f"{least} to {most}"
    return f"{of('link_round_trip_ms')} ms, the shortest echo; the median {of('link_round_trip_median_ms')} ms"


def verdicts(measured):
    """Lines of the figures, those with an aim first."""
    lines = []
    for one in sorted(measured, key=lambda one: one["aim"] is None):
        word = {True: "met ", False: "MISS", None: "    "}[one["met"]]
        aim = "" if one["aim"] is None else f", aim {one['aim']:g}"
        lines.append(f"  {word} {one['name']}: {one['value']:g} {one['unit']}{aim}" + (f"  {one['note']}" if one["note"] else ""))
    return "\n".join(lines)


def gaps(whole, more):
    """Lines of what a table lacks, and why; `more`: the options that measure all of it."""
    lines = []
    for title in ("failed", "skipped"):
        for one in whole.get(title, []):
            lines.append(f"  {title} {one['name']}: {one['why'].splitlines()[0]}")
    if whole["not_measured"]:
        lines.append(f"not measured ({more} measure all of it):")
        lines += [f"  {line}" for line in whole["not_measured"]]
    return "\n".join(lines)

"""What scripts/bench-fabric measures, and what it is held against. Nothing runs here."""

import collections

from fabric_cells import figure

# `layers` are remote, "1", "2" or "all"; `streams` are numbers of them, `dispatch` rows of a call instead.
Run = collections.namedtuple("Run", "name model round_trip layers streams nginx dispatch")
# No number: it has no aim.
Aim = collections.namedtuple("Aim", "what unit number better")

# Of the ideal, on atlas.
IDEAL_AIM, IDEAL_AIM_OF_ONE = 0.9, 0.95
# Of local, on the 122B-shaped file, by remote layers and streams.
SHAPED_AIMS = {("1", 8): 0.85, ("all", 8): 0.8, ("all", 32): 0.9}
# Lost with one of 48 layers remote.
LONG_AIM = 0.02
# Rows a second in calls of 512 over calls of one.
DISPATCH_AIM, DISPATCH_ROWS = 150, (1, 512)
DISPATCH = f"dispatch of one layer, {DISPATCH_ROWS[-1]} rows over one at a time"


def runs(full, models, streams=None, only=""):
    """What is measured, in order: whatever shares a link and a model stands together. `streams`: other numbers of them."""
    usual = [1, 8, 64, 256] if full else [1, 8, 64]
    of_layers = ["1", "2", "all"] if full else ["1", "all"]
    found = []

    def add(model, round_trip, layers, numbers, nginx=False):
        name = f"{model}-{round_trip}ms-{layers}" + ("-nginx" if nginx else "")
        found.append(Run(name, model, round_trip, layers, streams or numbers, nginx, ()))

    for round_trip in [0, 13, 50, 100] if full else [0, 13]:
        for layers in of_layers:
            add("atlas", round_trip, layers, usual)
        if round_trip == 13:
            found.append(Run("dispatch", "atlas", 13, "1", [], False, DISPATCH_ROWS))
            # Right behind the same without it, since the two are compared.
            for layers in of_layers if full else ["all"]:
                add("atlas", 13, layers, usual, nginx=True)
    if "shaped" in models:
        for layers in ["1", "all"]:
            add("shaped", 13, layers, [1, 8, 32] if full else [1, 8])
    if "long" in models:
        add("long", 13, "1", [1, 8])
    return [run for run in found if only in run.name]


def cell_name(run, streams):
    return f"{run.name}-{streams}"


def cells_wanted(wanted):
    """By name, what is measured of which run: a number of streams, or nothing for calls alone. One stream is measured of each
    model, since it says what a pass computes."""
    found, models = {}, set()
    for run in wanted:
        if run.dispatch:
            found[run.name] = (run, None)
            continue
        streams = run.streams if run.model in models else dict.fromkeys([1, *run.streams])
        found |= {cell_name(run, number): (run, number) for number in streams}
        models.add(run.model)
    return found


def aim_of(run, streams):
    if run.nginx:
        return Aim("added by nginx", "of the rate without it", None, "lower")
    if run.model == "atlas":
        return Aim("of the ideal", "of the ideal", IDEAL_AIM_OF_ONE if streams == 1 else IDEAL_AIM, "higher")
    if run.model == "shaped":
        return Aim("of local", "of local", SHAPED_AIMS.get((run.layers, streams)), "higher")
    return Aim("overhead", "of local", LONG_AIM if streams == 8 else None, "lower")


def figure_name(run, streams):
    return f"{run.name}, {streams} streams, {aim_of(run, streams).what}"


def value_of(run, cell, by_run):
    """Of what its aim looks at; nothing where what it is compared with was not measured."""
    rate = cell["tokens_per_second"]
    if run.nginx:
        straight = by_run.get(run.name.removesuffix("-nginx"), [])
        beside = [one["tokens_per_second"] for one in straight if one["streams"] == cell["streams"]]
        return 1 - rate / beside[0] if beside else None
    if run.model == "atlas":
        return cell["share_of_ideal"]
    of_local = rate / cell["local_tokens_per_second"]
    return of_local if run.model == "shaped" else 1 - of_local


def figures(wanted, by_run, batches):
    """`by_run`: cells by the name of their run; `batches`: what was measured of calls alone, if it was."""
    measured = []
    for run in wanted:
        for cell in by_run.get(run.name, []):
            value, aim = value_of(run, cell, by_run), aim_of(run, cell["streams"])
            if value is None:
                continue
            ideal = "" if cell["ideal_tokens_per_second"] is None else f" of {cell['ideal_tokens_per_second']:.1f}"
            note = f"{cell['tokens_per_second']:.1f}{ideal}, local {cell['local_tokens_per_second']:.1f} tokens/s"
            note += "; of two runs, one after the other" if run.nginx else ""
            measured.append(figure(figure_name(run, cell["streams"]), value, aim.unit, aim.number, aim.better, note))
    if batches:
        small, large = batches[0], batches[-1]
        ratio = large["rows_per_second"] / small["rows_per_second"]
        note = f"{large['rows_per_second']:.0f} over {small['rows_per_second']:.1f} rows/s; here "
        measured.append(figure(DISPATCH, ratio, "x", DISPATCH_AIM, note=note + f"{large['local_rows_per_second']:.0f}"))
    return measured


def not_measured(measured, further=()):
    """The aims of the whole table that no figure is held against, whatever was asked for: a line for those of a run. `further`:
    names of other figures that have an aim."""
    have = {one["name"] for one in measured}
    lines = []
    for run in runs(True, ["shaped", "long"]):
        aims = [(streams, aim_of(run, streams)) for streams in run.streams]
        missing = [(streams, aim) for streams, aim in aims
                   if aim.number is not None and figure_name(run, streams) not in have]
        if missing:
            numbers = ", ".join(str(streams) for streams, _ in missing)
            lines.append(f"{run.name}, {missing[0][1].what}: {numbers} streams")
    return lines + [name for name in (DISPATCH, *further) if name not in have]

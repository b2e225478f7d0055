"""What `kvasir plan --check` says of the cells of scripts/bench-fabric: how far off it would have been."""

import statistics

from fabric_cells import figure
from swarm_network import report
from wide_link import TARGET

MEDIAN_AIM, WITHIN, WITHIN_AIM = 0.1, 0.15, 0.9
MEDIAN = "kvasir plan, median error of predictions"
SHARE = f"kvasir plan, cells within {100 * WITHIN:.0f} % of their prediction"
# Seconds for a model: what this machine computes is measured anew.
CHECK_WITHIN = 1800


def compared(home, table, model, file, threads):
    """The cells of one model beside their predictions. `home`: a new folder; `table`: a file with the cells."""
    home.mkdir()
    kvasir = [TARGET / "kvasir", "--json", "--home", home]
    report([*kvasir, "setup"])
    words = ["plan", "--model", file, "--threads", threads, "--measure", "--check", table, "--cells", model]
    return report([*kvasir, *words], timeout=CHECK_WITHIN)["cells"]


def figures(by_model):
    """Of the cells of all models together; nothing where there are none."""
    errors = {model: [abs(cell["error"]) for cell in cells] for model, cells in by_model.items()}
    every = [error for of_model in errors.values() for error in of_model]
    if not every:
        return []
    within = lambda some: sum(error <= WITHIN for error in some) / len(some)
    note = "; ".join(f"{model}: {len(some)} cells, median {100 * statistics.median(some):.1f} %, {100 * within(some):.0f} % within"
                     for model, some in errors.items() if some)
    return [figure(MEDIAN, statistics.median(every), "share", MEDIAN_AIM, "lower", note),
            figure(SHARE, within(every), "share", WITHIN_AIM, note=note)]

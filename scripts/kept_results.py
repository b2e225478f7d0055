"""For benches that take long: each result is kept as soon as it is there, so that what was interrupted goes on, and what fails is
tried once more and costs nothing but itself."""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import sys

from wide_link import ROOT, Failed

# What goes wrong where programs run.
TROUBLE = (Failed, OSError, subprocess.SubprocessError, ValueError)
TRIES = 2


def checkout():
    """What tells this checkout from another: its commit, and a digest of what was changed since."""
    def git(*words):
        try:
            done = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:
            return b""
        return b"" if done.returncode else done.stdout

    commit = git("rev-parse", "HEAD").decode().strip() or "no commit"
    return f"{commit} {hashlib.sha256(git('diff', 'HEAD')).hexdigest()[:16]}"


def identity(file):
    """What tells a file from another, without reading gigabytes of it."""
    about = os.stat(file)
    return [str(pathlib.Path(file).resolve()), about.st_size, about.st_mtime_ns]


def replace(file, text):
    """Writes a file whole or not at all."""
    part = file.with_name(file.name + ".part")
    part.write_text(text)
    part.replace(file)


class Kept:
    """Results by name: in `folder` as well, where there is one, and from there if they are of the same settings. Settings and
    results are what JSON can say."""

    def __init__(self, folder, settings):
        self.folder, self.settings, self.found = folder, settings, {}
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def file(self, name):
        return self.folder / f"{name}.json"

    def get(self, name):
        """Nothing where it is not there."""
        if self.folder and name not in self.found:
            try:
                kept = json.loads(self.file(name).read_text())
                if kept["settings"] == self.settings:
                    self.found[name] = kept["result"]
            except (OSError, ValueError, KeyError, TypeError):
                # Never measured, or a file of somebody else's.
                pass
        return self.found.get(name)

    def keep(self, name, result):
        self.found[name] = result
        if self.folder:
            replace(self.file(name), json.dumps({"settings": self.settings, "result": result}, indent=1) + "\n")


def in_turn(wanted, place, measured, keep):
    """Has what is `wanted`, a list of names, measured in that order. `measured(there, left)` measures those that are left, in the
    `there` that `place()` gives while it is entered, and tells each as (name, result) as soon as it is done; `keep` is told.

    Where that fails, the name whose turn it was is tried once more in a place made anew, and then left out; where there is no
    place, so are all. Gives why, by the names that were left out."""
    left, tries, failed = list(wanted), collections.Counter(), {}
    while left:
        is_up = False
        try:
            with place() as there:
                is_up = True
                with contextlib.closing(measured(there, list(left))) as found:
                    for name, result in found:
                        keep(name, result)
                        left.remove(name)
                if left:
                    raise Failed("nothing was said of it")
        except TROUBLE as trouble:
            blamed = left[:1] if is_up else list(left)
            tries.update(blamed)
            gone = [name for name in blamed if tries[name] == TRIES]
            failed |= {name: str(trouble) for name in gone}
            left = [name for name in left if name not in gone]
            what = "left out" if gone else "tried once more" if blamed else "all was measured before that"
            who = " and what comes after it" if len(blamed) > 1 else ""
            print(f"{blamed[0] if blamed else 'at the end'}{who}: {what}: {trouble}", file=sys.stderr, flush=True)
    return failed

"""Counts passed and failed checks, for the scripts that compare the programs with other libraries."""

import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, name, ok, why=""):
        if ok:
            self.passed += 1
            print(f"passed {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAILED {name}: {why}", flush=True)
        return ok

    def run(self, name, command, status=0):
        """Runs a program and checks its exit status; returns what it printed if that was as expected."""
        try:
            done = subprocess.run(
                command, cwd=ROOT, timeout=900, text=True, errors="replace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            self.check(name, False, e)
            return None
        tail = "\n".join(done.stdout.splitlines()[-30:])
        why = f"exit status {done.returncode}, expected {status}, of: {' '.join(command)}\n{tail}"
        return done.stdout if self.check(name, done.returncode == status, why) else None

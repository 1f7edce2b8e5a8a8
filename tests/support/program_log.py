"""ProgramLog: what a started program writes to standard error, read while it writes.

A program that inherits an open file shares its position: who seeks to read moves the place of the program's next line. So each
has an end of its own, and the program's appends.
"""

import re
import tempfile
import time

START_SECONDS = 120


class ProgramLog:
    def __init__(self):
        with tempfile.NamedTemporaryFile() as file:  # its name goes, it stays until both ends are closed
            self.end = open(file.name, "ab")  # for Popen
            self.file = open(file.name, "rb")

    def text(self):
        self.file.seek(0)
        return self.file.read().decode(errors="replace")

    def lines(self):
        """The whole ones."""
        return self.text().split("\n")[:-1]

    def port(self, process):
        """Waits until the server tells where it listens."""
        end = time.monotonic() + START_SECONDS
        while not (found := re.search(r"https?://127\.0\.0\.1:(\d+)/", self.text())):
            assert process.poll() is None and time.monotonic() < end, f"the server did not start:\n{self.text()}"
            time.sleep(0.02)
        return int(found.group(1))

    def close(self):
        self.end.close()
        self.file.close()

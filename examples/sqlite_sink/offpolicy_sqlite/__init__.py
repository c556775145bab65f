"""A sink that writes all runs into one SQLite database, to be read by queries."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from offpolicy.config.extensions import SinkInfo
from offpolicy.config.parsing import option

TABLES = """
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, config TEXT, summary TEXT);
CREATE TABLE IF NOT EXISTS records (run TEXT, env_steps REAL, key TEXT, value);
CREATE TABLE IF NOT EXISTS episodes (run TEXT, env_steps INTEGER, ep_return REAL, ep_length INTEGER);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """`sinks.sqlite.path` and `sinks.sqlite.timeout_s`."""

    path: str = option("runs.sqlite", "database file, shared by all runs")
    timeout_s: float = option(10.0, "seconds to wait for another run that writes", gt=0.0)


class SqliteSink:
    """Commits each record; the run goes on without the sink if the database refuses one."""

    def __init__(self, context):
        self._run, options = str(context.run_dir), context.options
        self._database = sqlite3.connect(options.path, timeout=options.timeout_s)
        self._database.executescript(TABLES)
        with self._database as db:
            db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, NULL)", (self._run, json.dumps(context.config)))
            since = (self._run, -1 if context.resume_step is None else context.resume_step)
            db.execute("DELETE FROM records WHERE run = ? AND env_steps > ?", since)  # superseded by a resume
            db.execute("DELETE FROM episodes WHERE run = ? AND env_steps > ?", since)

    def write(self, record):
        rows = [(self._run, record["env_steps"], key, value) for key, value in record.items()]
        with self._database as db:
            db.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)

    def episode(self, episode):
        row = (self._run, episode.env_steps, episode.ep_return, episode.ep_length)
        with self._database as db:
            db.execute("INSERT INTO episodes VALUES (?, ?, ?, ?)", row)

    def text(self, tag, content, env_steps): ...

    def finish(self, summary):
        with self._database as db:
            db.execute("UPDATE runs SET summary = ? WHERE run = ?", (json.dumps(summary), self._run))

    def close(self):
        self._database.close()


SQLITE = SinkInfo("offpolicy_sqlite:SqliteSink", SqliteOptions)

"""How the service says its sessions ended: counts by reason from its journal, with "none" for those still open."""

import sqlite3
from pathlib import Path


def ends(journal: Path) -> dict[str, int]:
    """Reason -> number of sessions, of a SQLite journal that no service writes to any more."""
    connection = sqlite3.connect(journal)
    try:
        rows = connection.execute("select coalesce(reason, 'none'), count(*) from service_sessions group by 1")
        return dict(sorted(rows.fetchall()))
    finally:
        connection.close()

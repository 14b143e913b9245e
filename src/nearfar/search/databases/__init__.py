"""Vector databases: one module for each, behind the protocol `Database`.

`connect` opens a table by the address of its database. `upload` copies an index to a table. `DatabaseIndex` searches in
a table.
"""

from nearfar.search.databases.connection import connect, names, register
from nearfar.search.databases.database import Database, Match, Rows, TableHeader
from nearfar.search.databases.database_index import DatabaseIndex
from nearfar.search.databases.upload import upload

__all__ = ["Database", "DatabaseIndex", "Match", "Rows", "TableHeader", "connect", "names", "register", "upload"]

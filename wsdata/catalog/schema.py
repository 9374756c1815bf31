"""Tables of the ledger's database, the version of their format, and how they come to be.

What the rows mean belongs to `ledger` and `locator`. `locator_*` and `writes` can be lost without
loss: the first are derived, the second is a memory of the last minutes.
"""

import sqlalchemy as sa
from sqlalchemy import exc

from wsdata.errors import CatalogError

FORMAT_VERSION = 1
WRITE_LOCK = 0x7773_6461_7461_0001  # advisory lock of Postgres: who holds it may write

METADATA = sa.MetaData()
_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up plain integers alone

COMMITS = sa.Table(
    "commits",
    METADATA,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("chain", sa.String(64), nullable=False),
    sa.Column("step", sa.String(128), nullable=False),
    sa.Column("partition", sa.String(128), nullable=False),
    sa.Column("run_id", sa.String(64)),
    sa.Column("committed_at", sa.String(32), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
OBJECTS = sa.Table(
    "objects",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("partition", sa.String(128), nullable=False),
    sa.Column("version", sa.String(128), nullable=False),
    sa.Column("version_digest", sa.String(64), nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("num_rows", sa.BigInteger, nullable=False),
    sa.Column("order_digest", sa.String(64), nullable=False),
    sa.Column("begin_seq", sa.Integer, nullable=False),
    sa.Column("end_seq", sa.Integer),
    sa.Index(
        "one_live_per_key",
        "name",
        "partition",
        "version",
        unique=True,
        sqlite_where=sa.text("end_seq IS NULL"),
        postgresql_where=sa.text("end_seq IS NULL"),
    ),
    sa.Index("objects_by_key", "partition", "name", "begin_seq"),
    sa.Index("objects_by_name", "name", "begin_seq"),
    sa.Index("objects_by_sha", "sha256"),
    sa.Index(  # what a view asks for: the few that ended since
        "objects_by_end",
        "end_seq",
        sqlite_where=sa.text("end_seq IS NOT NULL"),
        postgresql_where=sa.text("end_seq IS NOT NULL"),
    ),
)
FACTS = sa.Table(
    "facts",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("subject", sa.String(256), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("facts_by_kind", "kind", "subject"),
)
FORMAT = sa.Table(
    "format",
    METADATA,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("format_version", sa.Integer, nullable=False),
)
WRITES = sa.Table(  # what a write answered, for a writer that never heard of it
    "writes",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("nonce", sa.String(32), nullable=False, unique=True),
    sa.Column("answer", sa.Text, nullable=False),
)
LOCATOR_SEGMENTS = sa.Table(
    "locator_segments",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("num_rows", sa.BigInteger, nullable=False),
    sa.Column("num_parts", sa.Integer, nullable=False),
    sa.Column("num_buckets", sa.Integer, nullable=False),
    sqlite_autoincrement=True,  # a number never means another segment
)
LOCATOR_OBJECTS = sa.Table(
    "locator_objects",
    METADATA,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("segment_id", _ID, nullable=False),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Index("locator_objects_by_segment", "segment_id", "ordinal"),
)


def read_format(connection: sa.Connection) -> int | None:
    """Format of the ledger in a database; None where its tables are not there, or not all."""
    try:
        query = sa.select(FORMAT.c.format_version).where(FORMAT.c.name == "ledger")
        return connection.execute(query).scalar()
    except exc.DBAPIError as error:
        is_absent = getattr(error.orig, "pgcode", None) == "42P01"
        if is_absent or "no such table" in str(error.orig):
            return None
        raise


def make_tables(connection: sa.Connection) -> int:
    """Make what is missing of tables and indexes, and return the format that is then there.

    The caller holds the write lock. A ledger from before formats were written down has format 1.
    """
    METADATA.create_all(connection)
    for table in METADATA.sorted_tables:
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    found = read_format(connection)
    if found is None:
        connection.execute(sa.insert(FORMAT).values(name="ledger", format_version=FORMAT_VERSION))
        found = FORMAT_VERSION
    return found


def require_format(found: int, where: str) -> None:
    """Check that a ledger has the format that this code reads and writes.

    Raises:
        CatalogError: It is newer, or older.
    """
    if found == FORMAT_VERSION:
        return
    told = f"the ledger {where} has format {found}, this wsdata knows format {FORMAT_VERSION}: "
    raise CatalogError(
        told + "upgrade wsdata, or point it at a ledger of its own"
        if found > FORMAT_VERSION
        else told + "run `python launch.py prepare`, which brings it up to date"
    )

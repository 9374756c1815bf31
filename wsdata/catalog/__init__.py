"""What is live, and as of when: a SQL ledger over immutable Parquet objects.

Receives: reports of steps, and facts about subjects.
Exposes: live objects, rows as of a commit, the present view of every append-only fact.
"""

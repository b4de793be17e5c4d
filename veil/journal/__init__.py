"""What happened to each message: the journal's schema, and the export of a store's outbox as Parquet segments."""

"""`veil pipeline lifecycles`: from the journal's events to a row for every lease and every message, and sums of them.

The files in the order in which an event meets them:

    run.py         one run: take the lock, find what is new, make the new files, replace the manifest
    journal.py     which segments are new and can be read; their events
    generation.py  the stages of a run, on Spark or in this process, and the manifest that they come to
    lives.py       the events of some messages → their rows of `leases` and `messages`
    sums.py        those rows → sums by hour; hours → days and months
    tables.py      the columns of every table (columns.py: as numpy and Arrow have them)
    store.py       the manifest, the files that it names, and reading them
"""

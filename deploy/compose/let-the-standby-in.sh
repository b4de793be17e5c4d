#!/usr/bin/env bash
# Runs once, when the primary is made: a standby may copy and follow it, with the password.
set -euo pipefail
echo "host replication veil samenet scram-sha-256" >> "$PGDATA/pg_hba.conf"

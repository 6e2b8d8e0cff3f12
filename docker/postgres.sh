#!/bin/sh
# Run PostgreSQL for Airflow's records; make the database the first time. POSTGRES_PASSWORD is the password of its only user.
set -eu
: "${POSTGRES_PASSWORD:?make .env by: make .env}"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	# Made beside its place: a start that was cut off, also while it moved its files, is begun anew.
	[ ! -e "$PGDATA/new" ] || find "$PGDATA" -mindepth 1 -delete
	mkdir -m 700 "$PGDATA/new"
	(umask 077 && printf '%s' "$POSTGRES_PASSWORD" > /tmp/password)
	initdb -D "$PGDATA/new" -U airflow --pwfile=/tmp/password --auth=scram-sha-256 --encoding=UTF8 --locale=C
	rm /tmp/password
	echo 'host all all all scram-sha-256' >> "$PGDATA/new/pg_hba.conf"
	mv "$PGDATA"/new/[!P]* "$PGDATA"
	mv "$PGDATA/new/PG_VERSION" "$PGDATA"
	rmdir "$PGDATA/new"
fi
# A scheduler that is killed in mid transaction leaves its connection open in the processes that it forked; the next one would
# start no task until they are gone.
exec postgres -c listen_addresses='*' -c max_connections=200 -c idle_in_transaction_session_timeout=30s \
	-c unix_socket_directories=/tmp

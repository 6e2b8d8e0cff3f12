#!/bin/sh
# Write .env with new secrets for docker-compose.yaml: sh docker/make_env.sh [FILE]. A file that is there keeps every line, and gets
# the secrets that it lacks.
set -eu
umask 077
file=${1:-.env}
secret() { od -An -tx1 -N24 /dev/urandom | tr -d ' \n'; }
new=$(cat <<END
AIRFLOW_PASSWORD=$(secret)
AIRFLOW_FERNET_KEY=$(head -c 32 /dev/urandom | base64 | tr '+/' '-_')
AIRFLOW_SECRET_KEY=$(secret)
AIRFLOW_JWT_SECRET=$(secret)$(secret)
POSTGRES_PASSWORD=$(secret)
REDIS_PASSWORD=$(secret)
S3_ACCESS_KEY=$(secret)
S3_SECRET_KEY=$(secret)
GRAFANA_PASSWORD=$(secret)
METRICS_TOKEN=$(secret)
END
)
if [ ! -e "$file" ]; then
	cat > "$file.new" <<END
# Secrets of docker-compose.yaml, made by docker/make_env.sh. Who has them has the system: keep them out of repositories and logs.
# PostgreSQL and Airflow's records belong together: with a new POSTGRES_PASSWORD or AIRFLOW_FERNET_KEY the volumes cannot be read.
COMPOSE_PROJECT_NAME=streamkeeper
$new
END
	mv "$file.new" "$file"
	echo "$file has new secrets. Airflow's login is admin and AIRFLOW_PASSWORD."
	exit
fi
# Not COMPOSE_PROJECT_NAME: another name would be another system, with volumes of its own.
lacking=$(for line in $new; do grep -qE "^[[:space:]]*(export[[:space:]]+)?${line%%=*}[[:space:]]*=" "$file" || echo "$line"; done)
[ -n "$lacking" ] || exit 0
# A last line without its end gets one.
{ cat "$file" && { [ -z "$(tail -c 1 "$file")" ] || echo; } && echo "$lacking"; } > "$file.new"
mv "$file.new" "$file"
echo "$file has new secrets that it lacked: $(echo "$lacking" | cut -d = -f 1 | paste -sd ' ' -)."

#!/bin/sh
# Write .env with new secrets for docker-compose.yaml: sh docker/make_env.sh [FILE]. A file that is there stays as it is.
set -eu
umask 077
file=${1:-.env}
[ ! -e "$file" ] || { echo "$file is there already, and stays as it is."; exit 0; }
secret() { od -An -tx1 -N24 /dev/urandom | tr -d ' \n'; }
cat > "$file.new" <<END
# Secrets of docker-compose.yaml, made by docker/make_env.sh. Who has them has the system: keep them out of repositories and logs.
# PostgreSQL and Airflow's records belong together: with a new POSTGRES_PASSWORD or AIRFLOW_FERNET_KEY the volumes cannot be read.
COMPOSE_PROJECT_NAME=streamkeeper
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
mv "$file.new" "$file"
echo "$file has new secrets. Airflow's login is admin and AIRFLOW_PASSWORD."

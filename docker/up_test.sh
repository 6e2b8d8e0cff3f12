#!/bin/sh
# Play the demo's story through docker-compose.yaml, in containers, volumes and networks of its own, and remove them again:
# sh docker/up_test.sh PORT docker compose
set -eu
AIRFLOW_PORT=$1 COMPOSE_PROJECT_NAME=streamkeeper-test
# The story edits the pipeline file, as another user: that of a copy, in a folder that is for this user's eyes.
own=$(mktemp -d)
PIPELINES=$own/pipelines
cp -R spark_jobs/pipelines "$PIPELINES"
chmod -R a+rwX "$PIPELINES"
# In volumes, wherever .env has state and tables.
STREAMKEEPER_STATE= STREAMKEEPER_WAREHOUSE=
export AIRFLOW_PORT COMPOSE_PROJECT_NAME PIPELINES STREAMKEEPER_STATE STREAMKEEPER_WAREHOUSE
shift
# dash runs what is set for EXIT at a signal only if the signal ends it by exit.
trap 'exit 130' INT TERM HUP
trap '"$@" --profile story down --volumes; rm -rf "$own"' EXIT
# What one that was killed has left.
"$@" --profile story down --volumes
"$@" build
"$@" run --rm story

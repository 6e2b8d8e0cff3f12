#!/bin/sh
# Play the demo's story through docker-compose.yaml, in containers, volumes and networks of its own, and remove them again:
# sh docker/up_test.sh PORT docker compose
set -eu
AIRFLOW_PORT=$1 COMPOSE_PROJECT_NAME=streamkeeper-test
# The story edits the pipeline file: that of a volume, which Docker fills from the image.
PIPELINES=pipelines
export AIRFLOW_PORT COMPOSE_PROJECT_NAME PIPELINES
shift
# dash runs what is set for EXIT at a signal only if the signal ends it by exit.
trap 'exit 130' INT TERM HUP
trap '"$@" --profile story down --volumes' EXIT
# What one that was killed has left: its state, and a pipeline file that is changed already.
"$@" --profile story down --volumes
"$@" build
"$@" run --rm story

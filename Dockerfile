# The images of docker-compose.yaml, all from one base. BASE_IMAGE may be any Debian 12; its mirrors and certificate authorities
# are used. The build stages alone see PIP_INDEX_URL and the like, so the images do not hold them. Files come with the rights of the
# checkout, where a umask may have kept them from all but their owner: so each stage opens what it copies.
ARG BASE_IMAGE=debian:12-slim

FROM ${BASE_IMAGE} AS base
ENV LANG=C.UTF-8
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates tini \
 && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["/usr/bin/tini", "--"]

FROM base AS runtime
# The package of Java wants the folder, which slim images lack.
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && apt-get install -y --no-install-recommends python3 openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*

FROM runtime AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv openjdk-17-jdk-headless \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/streamkeeper
# Of the system, so that a base image with an authority of its own needs no more than that.
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
ARG PIP_INDEX_URL
COPY requirements-cluster.txt ./
RUN python3 -m venv .venv \
 && sed -n '/^uv==/,/[^\\]$/p' requirements-cluster.txt > .venv/uv.txt \
 && .venv/bin/python -m pip install --quiet --no-cache-dir -r .venv/uv.txt \
 && .venv/bin/python -m uv pip sync --quiet --no-cache --compile-bytecode \
      ${PIP_INDEX_URL:+--default-index "$PIP_INDEX_URL"} requirements-cluster.txt
# A mirror of Maven Central is named by STREAMKEEPER_IVY_SETTINGS, a file of the base image; a proxy by JAVA_TOOL_OPTIONS.
ARG STREAMKEEPER_IVY_SETTINGS
ARG JAVA_TOOL_OPTIONS
COPY jars.lock ./
COPY jvm jvm
COPY tools/kafka_broker.lock tools/s3.lock tools/
COPY streamkeeper/__init__.py streamkeeper/errors.py streamkeeper/redaction.py streamkeeper/settings.py streamkeeper/
COPY streamkeeper/distribution streamkeeper/distribution
COPY streamkeeper/jars streamkeeper/jars
RUN .venv/bin/python -m streamkeeper.jars .cache/jars \
 && .venv/bin/python -m streamkeeper.jars .cache/jars-s3 --lock jars.lock --lock tools/s3.lock \
 && .venv/bin/python -m streamkeeper.jars .cache/kafka-4.1.0 --lock tools/kafka_broker.lock \
 && chmod 666 .cache/.*.lock

# Airflow's parts, the Spark cluster, Kafka and the generator: one image, so that driver and executors have the same Python.
FROM runtime AS streamkeeper
LABEL org.opencontainers.image.title="streamkeeper" org.opencontainers.image.version="0.1.0"
RUN useradd --uid 10001 --user-group --home-dir /var/lib/airflow --no-create-home streamkeeper \
 && mkdir -p /var/lib/airflow/logs /var/lib/kafka /var/lib/streamkeeper/state /var/lib/streamkeeper/warehouse \
      /var/lib/streamkeeper/data \
 && chown -R streamkeeper: /var/lib/airflow /var/lib/kafka /var/lib/streamkeeper
WORKDIR /opt/streamkeeper
COPY --from=build /opt/streamkeeper/.venv .venv
COPY --from=build /opt/streamkeeper/.cache .cache
COPY docker/spark /etc/spark
COPY docker/pod.py /opt/pod.py
COPY jars.lock ./
COPY jvm jvm
COPY tools tools
COPY demo demo
COPY streamkeeper streamkeeper
COPY spark_jobs/*.py spark_jobs/
COPY spark_jobs/streamkeeper_jobs spark_jobs/streamkeeper_jobs
COPY plugins plugins
COPY dags dags
RUN .venv/bin/python -m compileall -q tools demo streamkeeper spark_jobs/streamkeeper_jobs plugins dags \
 && printf '#!/bin/sh\nexec /opt/streamkeeper/.venv/bin/python -m streamkeeper "$@"\n' > .venv/bin/streamkeeper \
 && chmod 755 .venv/bin/streamkeeper \
 && chmod -R a+rX /etc/spark /opt/pod.py jars.lock jvm tools demo streamkeeper spark_jobs plugins dags
ENV PATH=/opt/streamkeeper/.venv/bin:$PATH \
    PYTHONPATH=/opt/streamkeeper \
    PYTHONUNBUFFERED=1 \
    AIRFLOW_HOME=/var/lib/airflow \
    SPARK_CONF_DIR=/etc/spark \
    STREAMKEEPER_STATE=/var/lib/streamkeeper/state \
    STREAMKEEPER_WAREHOUSE=/var/lib/streamkeeper/warehouse \
    STREAMKEEPER_DATA=/var/lib/streamkeeper/data
USER streamkeeper
# On Kubernetes it is also that of drivers and executors: Spark gives their pods arguments alone.
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/streamkeeper/.venv/bin/python", "/opt/pod.py"]

# With the pipelines, which docker-compose.yaml mounts: so a change of them changes no image there.
FROM streamkeeper AS pod
COPY --chown=streamkeeper:streamkeeper spark_jobs/pipelines spark_jobs/pipelines

FROM base AS postgres
COPY docker/postgres.sh /usr/local/bin/
RUN mkdir -p /etc/postgresql-common \
 && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
 && apt-get update \
 && apt-get install -y --no-install-recommends postgresql-15 \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data \
 && chmod a+rX /usr/local/bin/postgres.sh
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
USER postgres
CMD ["sh", "/usr/local/bin/postgres.sh"]

FROM base AS redis
COPY docker/redis.sh /usr/local/bin/
RUN apt-get update \
 && apt-get install -y --no-install-recommends redis-server \
 && rm -rf /var/lib/apt/lists/* \
 && chmod a+rX /usr/local/bin/redis.sh
USER redis
CMD ["sh", "/usr/local/bin/redis.sh"]

FROM base AS prometheus
COPY docker/prometheus /etc/prometheus/streamkeeper
RUN apt-get update \
 && apt-get install -y --no-install-recommends prometheus \
 && rm -rf /var/lib/apt/lists/* \
 && chown -R prometheus: /var/lib/prometheus \
 && chmod -R a+rX /etc/prometheus/streamkeeper
USER prometheus
# Prometheus takes the token that it sends from a file alone.
CMD ["sh", "-c", "(umask 077 && printf %s \"$METRICS_TOKEN\" > /tmp/metrics_token) && exec prometheus --config.file=/etc/prometheus/streamkeeper/prometheus.yaml --storage.tsdb.path=/var/lib/prometheus --storage.tsdb.retention.time=15d"]

# Last, since a Docker without BuildKit builds every stage before the one that is asked for.
FROM base AS s3-build
# Debian 12 itself has Go 1.19; that of its backports fetches the release that the program asks for.
RUN echo 'deb http://deb.debian.org/debian bookworm-backports main' > /etc/apt/sources.list.d/backports.list \
 && apt-get update \
 && apt-get install -y --no-install-recommends -t bookworm-backports golang-go \
 && rm -rf /var/lib/apt/lists/*
ARG GOPROXY
RUN CGO_ENABLED=0 GOTOOLCHAIN=auto GOBIN=/opt go install -trimpath github.com/versity/versitygw/cmd/versitygw@v1.8.0

FROM base AS s3
COPY --from=s3-build /opt/versitygw /usr/local/bin/
RUN useradd --uid 10002 --user-group --no-create-home s3 && install -d -o s3 -g s3 /var/lib/s3
USER s3
# A bucket is a folder of this one.
CMD ["sh", "-c", "mkdir -p /var/lib/s3/streamkeeper && exec versitygw --port :7070 --health /health posix /var/lib/s3"]

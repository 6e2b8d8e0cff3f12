"""Files of a new project, by name. ``@DIST@`` is the distribution, ``@VERSION@`` its version, ``@HERE@`` the
folder, and ``@AIRFLOW@`` and ``@JAVA@`` the releases.
"""

from __future__ import annotations

PIPELINE = '''"""Orders: JSON files that arrive in {data}/orders, each order once.

`streamkeeper check` tells whether this file can be used, and `pytest` what it makes of rows.
"""

from streamkeeper import pipelines as dp

dp.create_source(
    "orders_raw",
    format="json",
    path="{data}/orders",
    schema="order_id STRING, customer STRING, amount DOUBLE, ordered_at TIMESTAMP",
)


@dp.temporary_view(sources=["orders_raw"])
def distinct_orders(orders):
    # A producer that sends an order again does so within a day: that bounds what must be remembered.
    return (
        orders.where("order_id IS NOT NULL")
        .withWatermark("ordered_at", "1 day")
        .dropDuplicatesWithinWatermark(["order_id"])
    )


dp.create_streaming_table("orders", comment="One row for each order")


@dp.append_flow(name="orders_flow", target="orders", sources=["distinct_orders"], trigger="10 seconds")
def orders_flow(orders):
    return orders
'''

CONFTEST = """pytest_plugins = ["streamkeeper.testing.fixtures"]
"""

TEST = """from pathlib import Path

PIPELINE = Path(__file__).parents[1] / "pipelines" / "orders.py"


def test_an_order_that_is_sent_twice_is_in_the_table_once(pipeline_test):
    test = pipeline_test(PIPELINE)
    order = {"order_id": "a1", "customer": "Ada", "amount": 12.5, "ordered_at": "2026-01-01T10:00:00Z"}
    test.arrive("orders_raw", [order])
    test.arrive("orders_raw", [order, {**order, "order_id": "b2"}])
    test.run("orders_flow")
    assert sorted(row["order_id"] for row in test.rows("orders")) == ["a1", "b2"]
"""

DAGS = '''"""All DAGs of Streamkeeper: for Airflow's dags folder."""

from streamkeeper_airflow import all_dags

globals().update(all_dags())
'''

ENV = """# Settings of Streamkeeper, for a terminal and for each part of Airflow:
#     set -a; . @HERE@/.env; set +a
# On several hosts state, warehouse and data are on storage that all of them see, such as s3://BUCKET/state.
STREAMKEEPER_PIPELINES=@HERE@/pipelines
STREAMKEEPER_STATE=@HERE@/var/state
STREAMKEEPER_WAREHOUSE=@HERE@/var/warehouse
STREAMKEEPER_DATA=@HERE@/var/data
STREAMKEEPER_JARS=@HERE@/var/jars
"""

IGNORE = """.env
/var/
__pycache__/
"""

DOCKERFILE = """# Airflow with Spark and Streamkeeper: one image for each part of Airflow.
# Streamkeeper's wheel lies in wheels/.
FROM apache/airflow:@AIRFLOW@-python3.12

USER root
RUN apt-get update \\
    && apt-get install -y --no-install-recommends openjdk-@JAVA@-jre-headless procps \\
    && rm -rf /var/lib/apt/lists/* \\
    && mkdir -p /opt/streamkeeper/jars /var/lib/streamkeeper \\
    && chown -R airflow:root /opt/streamkeeper /var/lib/streamkeeper

USER airflow
ENV STREAMKEEPER_PIPELINES=/opt/streamkeeper/pipelines \\
    STREAMKEEPER_JARS=/opt/streamkeeper/jars \\
    STREAMKEEPER_STATE=/var/lib/streamkeeper/state \\
    STREAMKEEPER_WAREHOUSE=/var/lib/streamkeeper/warehouse \\
    STREAMKEEPER_DATA=/var/lib/streamkeeper/data
COPY --chown=airflow:root wheels/ /tmp/wheels/
# Airflow is named, too, so that it stays as it is in the image.
RUN pip install --no-cache-dir --find-links /tmp/wheels \\
        "@DIST@[airflow,spark,s3]==@VERSION@" "apache-airflow==@AIRFLOW@"
RUN streamkeeper jars /opt/streamkeeper/jars --s3
COPY --chown=airflow:root pipelines/ /opt/streamkeeper/pipelines/
COPY --chown=airflow:root dags/ /opt/airflow/dags/
"""

HELM = """# For Airflow's official Helm chart:
#     helm upgrade --install airflow apache-airflow/airflow -f values.yaml
# Drivers run in workers; state and tables are on S3, which all pods reach.
airflowVersion: "@AIRFLOW@"
defaultAirflowTag: "@AIRFLOW@"
images:
  airflow:
    repository: REGISTRY/streams
    tag: "1"
executor: CeleryExecutor
env:
  - name: STREAMKEEPER_STATE
    value: s3://BUCKET/state
  - name: STREAMKEEPER_WAREHOUSE
    value: s3://BUCKET/warehouse
  - name: STREAMKEEPER_DATA
    value: s3://BUCKET/data
  - name: STREAMKEEPER_PIPELINE_ENV
    value: AWS_*
  - name: AIRFLOW_CONN_STREAMKEEPER_SPARK
    value: '{"conn_type": "spark", "host": "local[2]"}'
# The keys of S3, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; leave it out where pods have a role.
extraEnvFrom: |
  - secretRef:
      name: streamkeeper-s3
config:
  core:
    dags_are_paused_at_creation: "True"
    dagbag_import_timeout: "120"
  dag_processor:
    dag_file_processor_timeout: "180"
  scheduler:
    task_instance_heartbeat_timeout: "300"
  celery:
    worker_concurrency: "8"
    worker_prefetch_multiplier: "1"
  # A flow's task runs for months; Redis would hand it to a second worker after a day.
  celery_broker_transport_options:
    visibility_timeout: "315360000"
workers:
  # One driver with Spark's default heap takes 1.5 GiB.
  resources:
    requests: {cpu: "2", memory: 6Gi}
    limits: {memory: 6Gi}
  # A driver ends its batch before it stops.
  terminationGracePeriodSeconds: 600
dags:
  persistence:
    enabled: false
# Once it runs, in the scheduler's pod: streamkeeper setup, and streamkeeper doctor.
"""

WORKFLOW = """# What a pull request would do to the running flows.
name: pull request
on: pull_request
permissions:
  contents: read
jobs:
  pipelines:
    runs-on: ubuntu-latest
    env:
      STREAMKEEPER_PIPELINES: ${{ github.workspace }}/pipelines
      STREAMKEEPER_JARS: ${{ github.workspace }}/var/jars
      STREAMKEEPER_STATE: ${{ github.workspace }}/var/state
      STREAMKEEPER_WAREHOUSE: ${{ github.workspace }}/var/warehouse
      STREAMKEEPER_DATA: ${{ github.workspace }}/var/data
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {python-version: "3.12"}
      - uses: actions/setup-java@v4
        with: {distribution: temurin, java-version: "@JAVA@"}
      - run: pip install --find-links wheels "@DIST@[cli,spark,s3]==@VERSION@" pytest
      - run: streamkeeper jars var/jars --s3
      # With a state folder of this run's own; nothing is written.
      - run: streamkeeper check --analyze
      - run: pytest tests
      # Against the state of production, which is only read: the repository has its address and the keys.
      - if: vars.STREAMKEEPER_STATE != ''
        run: streamkeeper preflight --pipelines pipelines
        env:
          STREAMKEEPER_STATE: ${{ vars.STREAMKEEPER_STATE }}
          STREAMKEEPER_WAREHOUSE: ${{ vars.STREAMKEEPER_WAREHOUSE }}
          AWS_ACCESS_KEY_ID: ${{ secrets.AWS_ACCESS_KEY_ID }}
          AWS_SECRET_ACCESS_KEY: ${{ secrets.AWS_SECRET_ACCESS_KEY }}
"""

README = """# Streams

    set -a; . @HERE@/.env; set +a                  # in each terminal, and for each part of Airflow
    streamkeeper jars @HERE@/var/jars
    streamkeeper check
    streamkeeper run orders.orders_flow --available-now
    cp dags/streamkeeper_dags.py $AIRFLOW_HOME/dags/
    streamkeeper setup --master 'local[2]'
    streamkeeper doctor
    airflow dags unpause flow__orders__orders_flow

`pytest tests` runs the pipeline on rows of a test. Jobs that you have move in by
`streamkeeper adopt --scan DAGS_FOLDER`.
"""

FILES = {
    "pipelines/orders.py": PIPELINE,
    "tests/conftest.py": CONFTEST,
    "tests/test_orders.py": TEST,
    "dags/streamkeeper_dags.py": DAGS,
    ".env": ENV,
    ".gitignore": IGNORE,
    ".github/workflows/pull_request.yml": WORKFLOW,
    "Dockerfile": DOCKERFILE,
    "values.yaml": HELM,
    "README.md": README,
}
"""By name below the project's folder."""
